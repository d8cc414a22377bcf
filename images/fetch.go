package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bareyard/bareyard/machine"
)

// How patient a download is.
const (
	stallTimeout  = time.Minute      // without a byte
	fetchAttempts = 6                // in a row without a byte
	maxBackoff    = 20 * time.Second // between attempts
	syncEvery     = 64 << 20         // bytes: how much a crash costs at most
)

// download is a file on its way from a URL. It is called .part for as long as it exists, so that a part is never taken for a whole
// (field case F13): a complete one is imported and removed at once, and only one that was interrupted stays.
type download struct {
	in    Import
	file  *os.File
	notes string // path of state
	state fetchState
}

// fetchState is what resuming needs to know; it lies beside the part.
type fetchState struct {
	Validator string `json:"validator"` // strong ETag or date of the file that the part is of; empty when it cannot be resumed
	Total     int64  `json:"total"`     // bytes; -1 when the server does not say
	Synced    int64  `json:"synced"`    // bytes that are on disk for sure
}

// errRestart means that the server has another file now, or cannot resume.
var errRestart = errors.New("download starts again")

// fetch downloads in.URL, resuming what an earlier call left, and returns the file at its start.
func (s *Store) fetch(ctx context.Context, in Import) (*os.File, error) {
	u, err := url.Parse(in.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, &machine.Error{Code: machine.Invalid, Field: "url", Message: "the address of the image is no http or https URL"}
	}
	dir, err := s.incoming()
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256([]byte(in.URL))
	part := filepath.Join(dir, hex.EncodeToString(key[:16])+".part")
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("fetch image: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &machine.Error{Code: machine.Conflict, Field: "url", Message: "the same address is being fetched already", Hint: "wait for that import"}
	}
	if in.Client == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = stallTimeout
		in.Client = &http.Client{Transport: t}
		defer t.CloseIdleConnections()
	}
	d := &download{in: in, file: f, notes: strings.TrimSuffix(part, ".part") + ".json"}
	if err := d.run(ctx); err != nil {
		f.Close()
		return nil, err
	}
	os.Remove(d.notes)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, fmt.Errorf("fetch image: %w", err)
	}
	return f, nil
}

func (d *download) run(ctx context.Context) error {
	d.load()
	backoff := time.Second
	for failures := 0; ; {
		before := d.state.Synced
		err := d.attempt(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var final *machine.Error
		if errors.As(err, &final) {
			return err
		}
		if d.state.Synced > before {
			failures, backoff = 0, time.Second
		}
		if failures++; failures >= fetchAttempts {
			return &machine.Error{
				Code: machine.Unavailable, Field: "url",
				Message: fmt.Sprintf("the image cannot be fetched: %v", plainError(err)),
				Hint:    "try again: what has arrived is kept",
			}
		}
		if errors.Is(err, errRestart) {
			continue
		}
		timer := time.NewTimer(backoff)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		backoff = min(backoff*2, maxBackoff)
	}
}

// plainError takes the URL out of an error: it may hold a password or a signed query.
func plainError(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// load takes up what an earlier run left; anything odd means from the start.
func (d *download) load() {
	data, err := os.ReadFile(d.notes)
	info, statErr := d.file.Stat()
	if err != nil || statErr != nil || json.Unmarshal(data, &d.state) != nil || d.state.Validator == "" || d.state.Synced < 0 || d.state.Synced > info.Size() {
		d.state = fetchState{}
	}
}

// attempt makes one request and reads its answer to the end.
func (d *download) attempt(ctx context.Context) error {
	if d.state.Validator == "" {
		d.state = fetchState{}
	}
	if err := d.file.Truncate(d.state.Synced); err != nil {
		return final(err)
	}
	if _, err := d.file.Seek(d.state.Synced, io.SeekStart); err != nil {
		return final(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.in.URL, nil)
	if err != nil {
		return final(plainError(err))
	}
	// The digest is of the file as it lies there, so that nobody may pack it for the journey.
	req.Header.Set("Accept-Encoding", "identity")
	if d.state.Synced > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", d.state.Synced))
		req.Header.Set("If-Range", d.state.Validator)
	}
	resp, err := d.in.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := d.accept(resp); err != nil {
		return err
	}
	return d.copy(ctx, cancel, resp.Body)
}

// accept decides what an answer means for the part.
func (d *download) accept(resp *http.Response) error {
	switch {
	case resp.StatusCode == http.StatusPartialContent && d.state.Synced > 0:
		var first, last, total int64
		_, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d/%d", &first, &last, &total)
		// If-Range should have seen to it; some caches drop it.
		if err != nil || first != d.state.Synced || total != d.state.Total || validator(resp.Header) != d.state.Validator {
			return d.restart()
		}
		return nil
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return d.restart()
	case resp.StatusCode == http.StatusOK:
		d.state = fetchState{Validator: validator(resp.Header), Total: resp.ContentLength}
		if limit := maxFile(d.in.MaxSize); d.state.Total > limit {
			return sizeError(uint64(d.state.Total), d.in.MaxSize)
		}
		if err := d.file.Truncate(0); err != nil {
			return final(err)
		}
		_, err := d.file.Seek(0, io.SeekStart)
		return final(err)
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusRequestTimeout:
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	return &machine.Error{
		Code: machine.Invalid, Field: "url",
		Message: fmt.Sprintf("the server answers %s for the image", resp.Status), Hint: "open the address in a browser to see what is there",
	}
}

func (d *download) restart() error {
	d.state = fetchState{}
	return errRestart
}

// validator returns what names this very version of a file to its server. A weak ETag does not, by RFC 9110, 13.1.5.
func validator(h http.Header) string {
	if tag := h.Get("ETag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		return tag
	}
	return h.Get("Last-Modified")
}

var errStalled = fmt.Errorf("no byte for %v", stallTimeout)

func (d *download) copy(ctx context.Context, cancel context.CancelCauseFunc, body io.Reader) error {
	watchdog := time.AfterFunc(stallTimeout, func() { cancel(errStalled) })
	defer watchdog.Stop()
	buf := make([]byte, 1<<20)
	limit := maxFile(d.in.MaxSize)
	at, synced := d.state.Synced, d.state.Synced
	for {
		n, err := body.Read(buf)
		watchdog.Reset(stallTimeout)
		if _, werr := d.file.Write(buf[:n]); werr != nil {
			return final(werr)
		}
		at += int64(n)
		if at > limit {
			return sizeError(uint64(at), d.in.MaxSize)
		}
		d.in.Progress(Fetching, at, max(d.state.Total, 0))
		if err != nil || at-synced >= syncEvery {
			if err := d.save(at); err != nil {
				return final(err)
			}
			synced = at
		}
		switch {
		case d.state.Total >= 0 && at > d.state.Total:
			return d.restart()
		case errors.Is(err, io.EOF) && (d.state.Total < 0 || at == d.state.Total):
			return nil
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
	}
}

// save syncs the part and notes how far it is.
func (d *download) save(at int64) error {
	if err := d.file.Sync(); err != nil {
		return err
	}
	d.state.Synced = at
	data, err := json.Marshal(d.state)
	if err != nil {
		return err
	}
	return writeFile(d.notes, data)
}

// final marks an error of this host, which another attempt does not mend.
func final(err error) error {
	if err == nil {
		return nil
	}
	return &machine.Error{Code: machine.Unavailable, Field: "url", Message: fmt.Sprintf("the image cannot be kept here: %v", err), Hint: "see that the image store has space and may be written"}
}
