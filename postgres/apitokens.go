package postgres

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
)

// NewAPIToken makes a token for a role and project; only its hash is kept.
func (db *DB) NewAPIToken(ctx context.Context, role, project string) (string, error) {
	token := "by_" + rand.Text()
	sum := sha256.Sum256([]byte(token))
	return token, db.exec(ctx, "write API token", `INSERT INTO api_token (hash, role, project) VALUES ($1, $2, $3)`, sum[:], role, project)
}

// APIToken returns whose token it is, or a NotFound error.
func (db *DB) APIToken(ctx context.Context, token string) (role, project string, err error) {
	sum := sha256.Sum256([]byte(token))
	err = db.pool.QueryRow(ctx, `SELECT role, project FROM api_token WHERE hash = $1`, sum[:]).Scan(&role, &project)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", "", &machine.Error{Code: machine.NotFound, Message: "no such token"}
	}
	if err != nil {
		return "", "", fmt.Errorf("read API token: %w", err)
	}
	return role, project, nil
}
