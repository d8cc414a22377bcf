package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxAnswer bounds an answer: the largest is a Configure with its seed files.
const maxAnswer = 4 << 20

// server is the agent's side of the wire.
type server struct {
	base  string
	token string
	http  *http.Client
}

// statusError is an answer that is not a success.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string {
	if e.text == "" {
		return fmt.Sprintf("the server answers %d", e.code)
	}
	return fmt.Sprintf("the server answers %d: %s", e.code, e.text)
}

// refused reports whether err is an answer that will not change: the attempt is over (410), the token is not taken (401,
// 403), the request is not understood. 404 and 409 may come from a server or a proxy that is just starting.
func refused(err error) bool {
	var s *statusError
	if !errors.As(err, &s) {
		return false
	}
	switch s.code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return s.code >= 400 && s.code < 500
}

// post sends in and decodes the answer into out.
func (s *server) post(ctx context.Context, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(s.base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		// The text is for the console of this machine only, and never holds what we sent.
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300)) // best effort: the status says enough
		return &statusError{res.StatusCode, strings.Join(strings.Fields(string(text)), " ")}
	}
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if len(raw) > maxAnswer {
		return fmt.Errorf("read answer: longer than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}
