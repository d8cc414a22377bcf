package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
	"github.com/bareyard/bareyard/provisioner"
)

// stock implements provisioner.Stock and provisioner.Moves inside a transaction.
type stock struct{ tx pgx.Tx }

const fits = ` m.class = $1 AND (m.firmware = 'bios' AND $2 OR m.firmware = 'uefi' AND $3)
	AND EXISTS (SELECT 1 FROM jsonb_array_elements(m.hardware->'disks') d WHERE d->>'role' = 'system' AND (d->>'size')::bigint >= $4)
	AND NOT m.id = ANY ($5)`

// examined is a machine of the stock that is only being looked at.
const examined = ` m.state = 'accepting'
	AND EXISTS (SELECT 1 FROM job j WHERE j.id = m.job_id AND j.kind = 'examine' AND j.comes_from = 'available' AND j.state = 'running')`

// Before saying "sold out", wait for what another order is just looking at: it may roll back. So whoever is free at once is
// looked for first, then whoever is free at all.
var lookTwice = [...]string{"FOR UPDATE SKIP LOCKED", "FOR UPDATE"}

func (s stock) Machine(ctx context.Context, p provisioner.Pick) (*machine.Machine, error) {
	except := append([]string{}, p.Except...)
	for _, lock := range lookTwice {
		var m machine.Machine
		err := s.tx.QueryRow(ctx, `SELECT `+machineColumns+` FROM machine m WHERE m.state = 'available' AND m.site = $6 AND `+fits+` ORDER BY m.updated LIMIT 1 `+lock,
			p.Class, p.Image.Boots(machine.BIOS), p.Image.Boots(machine.UEFI), p.Image.DiskNeeded(), except, p.Site).Scan(machineFields(&m)...)
		if err == nil {
			return &m, nil
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return nil, fmt.Errorf("pick machine: %w", err)
		}
	}
	return nil, s.soldOut(ctx, p)
}

func (s stock) Examined(ctx context.Context, p provisioner.Pick) (*machine.Machine, *machine.Job, error) {
	var m machine.Machine
	err := s.tx.QueryRow(ctx, `SELECT `+machineColumns+` FROM machine m WHERE `+examined+` AND m.site = $6 AND `+fits+`
		ORDER BY m.updated LIMIT 1 FOR UPDATE`,
		p.Class, p.Image.Boots(machine.BIOS), p.Image.Boots(machine.UEFI), p.Image.DiskNeeded(), append([]string{}, p.Except...), p.Site).Scan(machineFields(&m)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pick machine under examination: %w", err)
	}
	j, err := getJob(ctx, s.tx, m.JobID, "FOR UPDATE")
	if err != nil {
		return nil, nil, err
	}
	return &m, &j, nil
}

// soldOut says why there is no machine: never one that could take the image, none at the line's site, or none just now.
func (s stock) soldOut(ctx context.Context, p provisioner.Pick) error {
	var total, suitable, here int
	err := s.tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE `+fits+`), count(*) FILTER (WHERE m.site = $6) FROM machine m WHERE m.class = $1 AND m.state <> 'retired'`,
		p.Class, p.Image.Boots(machine.BIOS), p.Image.Boots(machine.UEFI), p.Image.DiskNeeded(), []string{}, p.Site).Scan(&total, &suitable, &here)
	if err != nil {
		return fmt.Errorf("count stock: %w", err)
	}
	if total > 0 && suitable == 0 {
		return &machine.Error{Code: machine.Invalid, Field: "image",
			Message: fmt.Sprintf("no machine of class %s can take image %s: it needs %d bytes of system disk and firmware that it boots under", p.Class, p.Image.Name, p.Image.DiskNeeded()),
			Hint:    "choose a smaller image, or a class with larger system disks"}
	}
	elsewhere, err := s.sites(ctx, p)
	if err != nil {
		return err
	}
	switch {
	case total > 0 && here == 0:
		return &machine.Error{Code: machine.Exhausted, Field: "line", Message: fmt.Sprintf("class %s has no machines at site %s, where line %s is", p.Class, p.Site, p.Line),
			Hint: otherSites(elsewhere, "choose another class, or a line of another site")}
	case len(elsewhere) > 0:
		return &machine.Error{Code: machine.Exhausted, Field: "line", Message: fmt.Sprintf("class %s is sold out at site %s, where line %s is", p.Class, p.Site, p.Line),
			Hint: otherSites(elsewhere, "")}
	}
	return &machine.Error{Code: machine.Exhausted, Message: fmt.Sprintf("class %s is sold out", p.Class), Hint: "choose another class, or try again later"}
}

func otherSites(sites map[string][]string, otherwise string) string {
	hint := ""
	for _, site := range slices.Sorted(maps.Keys(sites)) {
		if len(sites[site]) > 0 {
			hint += fmt.Sprintf("; at %s: %v", site, sites[site])
		}
	}
	if hint == "" {
		return otherwise
	}
	return "choose a line of a site that has some" + hint
}

// sites returns at which other sites there are machines that would do, and the lines there.
func (s stock) sites(ctx context.Context, p provisioner.Pick) (map[string][]string, error) {
	rows, err := s.tx.Query(ctx, `SELECT DISTINCT m.site, ARRAY(SELECT l.name FROM line l WHERE l.site = m.site ORDER BY 1) FROM machine m
		WHERE (m.state = 'available' OR`+examined+`) AND m.site <> $6 AND `+fits, p.Class, p.Image.BIOS, p.Image.UEFI, p.Image.Size, append([]string{}, p.Except...), p.Site)
	if err != nil {
		return nil, fmt.Errorf("list sites: %w", err)
	}
	found := map[string][]string{}
	var site string
	var lines []string
	_, err = pgx.ForEachRow(rows, []any{&site, &lines}, func() error {
		found[site] = lines
		lines = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list sites: %w", err)
	}
	return found, nil
}

func (s stock) Addresses(ctx context.Context, w provisioner.Want, orderID string) ([]netip.Prefix, error) {
	var got []netip.Prefix
	for _, lock := range lookTwice {
		rows, err := s.tx.Query(ctx, `WITH pick AS (
				SELECT addr FROM address WHERE line = $1 AND family = $2 AND order_id IS NULL AND state = 'stock' AND free_at <= now()
				AND NOT EXISTS (SELECT 1 FROM ptr WHERE ptr.prefix = address.addr) -- the name of whoever had it is still in the reverse DNS
				ORDER BY free_at, addr LIMIT $3 `+lock+`),
			held AS (UPDATE address a SET order_id = $4, since = clock_timestamp(), proven = false FROM pick WHERE a.addr = pick.addr RETURNING a.addr)
			INSERT INTO assignment (addr, order_id, project, machine_id, during)
			SELECT held.addr, o.id, o.project, o.machine_id, tstzrange(clock_timestamp(), NULL) FROM held, orders o WHERE o.id = $4 RETURNING addr`,
			w.Line, w.Family, w.Count-len(got), orderID)
		if err != nil {
			return nil, fmt.Errorf("pick address: %w", err)
		}
		some, err := pgx.CollectRows(rows, pgx.RowTo[netip.Prefix])
		if err != nil {
			return nil, fmt.Errorf("pick address: %w", err)
		}
		slices.SortFunc(some, netip.Prefix.Compare)
		if got = append(got, some...); len(got) == w.Count {
			return got, nil
		}
	}
	return nil, s.noAddress(ctx, w, len(got))
}

func (s stock) noAddress(ctx context.Context, w provisioner.Want, free int) error {
	var total, cooling, named int
	err := s.tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE order_id IS NULL AND state = 'stock' AND free_at > now()),
		count(*) FILTER (WHERE order_id IS NULL AND state = 'stock' AND free_at <= now() AND EXISTS (SELECT 1 FROM ptr WHERE ptr.prefix = address.addr)) FROM address WHERE line = $1 AND family = $2`,
		w.Line, w.Family).Scan(&total, &cooling, &named)
	if err != nil {
		return fmt.Errorf("count addresses: %w", err)
	}
	what, field := "address", "line"
	if w.Family == 6 {
		what, field = "IPv6 prefix", "ipv6"
	} else if w.Count > 1 {
		field = "addresses"
	}
	e := &machine.Error{Code: machine.Exhausted, Field: field, Message: fmt.Sprintf("line %s has no free %s", w.Line, what), Hint: "choose another line, or try again later"}
	switch {
	case total == 0 && w.Family == 6:
		e.Code, e.Message, e.Hint = machine.Invalid, fmt.Sprintf("line %s has no IPv6", w.Line), "leave ipv6 out, or choose another line"
	case free > 0:
		e.Message, e.Hint = fmt.Sprintf("line %s has %d free, %d are asked for", w.Line, free, w.Count), "ask for fewer, or choose another line"
	case cooling > 0:
		e.Hint += fmt.Sprintf(": %d that were released cool down before they are given out again", cooling)
	case named > 0:
		e.Hint += fmt.Sprintf(": %d wait for their reverse DNS to be cleared", named)
	}
	return e
}

// release ends what an order has of the addresses that a condition selects; $1 is the order, $2 whether they were used.
func (s stock) release(ctx context.Context, where string, args ...any) error {
	_, err := s.tx.Exec(ctx, `UPDATE address a SET order_id = NULL, since = NULL, leaving = false, next_order = '',
		free_at = CASE WHEN $2 THEN now() + p.cool_down ELSE a.free_at END
		FROM address_pool p WHERE p.name = a.pool AND a.order_id = $1`+where, args...)
	if err != nil {
		return fmt.Errorf("free address: %w", err)
	}
	_, err = s.tx.Exec(ctx, `UPDATE ptr SET name = '', state = 'waiting', due = now(), tries = 0 WHERE name <> '' AND prefix IN
		(SELECT s.addr FROM assignment s JOIN address a ON a.addr = s.addr WHERE s.order_id = $1 AND upper_inf(s.during) AND a.order_id IS NULL)`, args[0])
	if err != nil {
		return fmt.Errorf("clear reverse DNS: %w", err)
	}
	// whatever is open and not held is over
	_, err = s.tx.Exec(ctx, `UPDATE assignment s SET during = tstzrange(lower(during), clock_timestamp()) WHERE order_id = $1 AND upper_inf(during)
		AND NOT EXISTS (SELECT 1 FROM address a WHERE a.addr = s.addr AND a.order_id = $1)`, args[0])
	if err != nil {
		return fmt.Errorf("end assignment: %w", err)
	}
	return nil
}

func (s stock) FreeAddresses(ctx context.Context, orderID string, used bool) error {
	return s.release(ctx, "", orderID, used)
}

func (s stock) Leave(ctx context.Context, orderID string, p netip.Prefix, next string) error {
	_, err := s.tx.Exec(ctx, `UPDATE address SET leaving = true, next_order = $3 WHERE order_id = $1 AND addr = $2`, orderID, p, next)
	if err != nil {
		return fmt.Errorf("take address off: %w", err)
	}
	return nil
}

func (s stock) Leaving(ctx context.Context, orderID string, p netip.Prefix) (next string, ok bool, err error) {
	err = s.tx.QueryRow(ctx, `SELECT next_order FROM address WHERE order_id = $1 AND addr = $2 AND leaving FOR UPDATE`, orderID, p).Scan(&next)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read address: %w", err)
	}
	return next, true, nil
}

func (s stock) Pass(ctx context.Context, orderID string, p netip.Prefix, next string) error {
	if next == "" {
		return s.release(ctx, " AND a.addr = $3 AND a.leaving", orderID, true, p)
	}
	tag, err := s.tx.Exec(ctx, `UPDATE address SET order_id = $3, since = clock_timestamp(), leaving = false, next_order = '' WHERE order_id = $1 AND addr = $2 AND leaving`, orderID, p, next)
	if err != nil {
		return fmt.Errorf("move address: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return nil
	}
	if _, err := s.tx.Exec(ctx, `UPDATE assignment SET during = tstzrange(lower(during), clock_timestamp()) WHERE order_id = $1 AND addr = $2 AND upper_inf(during)`, orderID, p); err != nil {
		return fmt.Errorf("end assignment: %w", err)
	}
	_, err = s.tx.Exec(ctx, `INSERT INTO assignment (addr, order_id, project, machine_id, during)
		SELECT $1, o.id, o.project, o.machine_id, tstzrange(clock_timestamp(), NULL) FROM orders o WHERE o.id = $2`, p, next)
	if err != nil {
		return fmt.Errorf("write assignment: %w", err)
	}
	return nil
}

func (s stock) Unproven(ctx context.Context, orderID string) ([]netip.Prefix, error) {
	rows, err := s.tx.Query(ctx, `SELECT addr FROM address WHERE order_id = $1 AND NOT proven AND NOT leaving ORDER BY addr`, orderID)
	if err != nil {
		return nil, fmt.Errorf("list addresses to look at: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[netip.Prefix])
}

func (s stock) Prove(ctx context.Context, orderID string, ps []netip.Prefix) error {
	if len(ps) == 0 {
		return nil
	}
	if _, err := s.tx.Exec(ctx, `UPDATE address SET proven = true WHERE order_id = $1 AND addr = ANY ($2::inet[])`, orderID, ps); err != nil {
		return fmt.Errorf("write that addresses are free: %w", err)
	}
	return nil
}

// Bounds of what a probe is believed: at how many addresses one MAC address may be found before it is taken for one that answers for
// everybody, and how many addresses of a line may be set aside at once, by whomever. A MAC address costs nothing: without the second
// bound a stranger with many would make the line run out.
const (
	credulous = 3
	crowded   = 16
	givenUp   = 8 // how many addresses an order gives up before it waits: from then on what is used goes back to stock, behind all others
)

func (s stock) Spoil(ctx context.Context, orderID string, p netip.Prefix, by, note string) (provisioner.Belief, error) {
	// One at a time for a line, or orders that look at once would set aside more than the bound.
	_, err := s.tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('conflict/' || line, 0)) FROM address WHERE addr = $1`, p)
	if err != nil {
		return "", fmt.Errorf("lock line: %w", err)
	}
	var his, all int
	err = s.tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE $1 <> '' AND used_by = $1), count(*) FILTER (WHERE line = (SELECT line FROM address WHERE addr = $2))
		FROM address WHERE state = 'conflict' AND addr <> $2`, by, p).Scan(&his, &all)
	if err != nil {
		return "", fmt.Errorf("count addresses in conflict: %w", err)
	}
	if his >= credulous {
		return provisioner.AnswersForAll, nil
	}
	if all >= crowded {
		var had int
		if err := s.tx.QueryRow(ctx, `SELECT count(*) FROM assignment WHERE order_id = $1 AND NOT upper_inf(during)`, orderID).Scan(&had); err != nil {
			return "", fmt.Errorf("count addresses given up: %w", err)
		}
		if had >= givenUp {
			return provisioner.TooManyAside, nil
		}
		if err := s.release(ctx, " AND a.addr = $3", orderID, false, p); err != nil {
			return "", err
		}
		// The minute keeps it from the order itself.
		if _, err := s.tx.Exec(ctx, `UPDATE address SET free_at = clock_timestamp() + interval '1 minute' WHERE addr = $1`, p); err != nil {
			return "", fmt.Errorf("put address back: %w", err)
		}
		return provisioner.PutBack, nil
	}
	if err := s.release(ctx, " AND a.addr = $3", orderID, true, p); err != nil {
		return "", err
	}
	if _, err := s.tx.Exec(ctx, `UPDATE address SET state = 'conflict', note = $2, used_by = $3 WHERE addr = $1`, p, note, by); err != nil {
		return "", fmt.Errorf("take address out of stock: %w", err)
	}
	return provisioner.SetAside, nil
}

func (s stock) Line(ctx context.Context, name string) (network.Line, error) {
	return getLine(ctx, s.tx, name)
}
