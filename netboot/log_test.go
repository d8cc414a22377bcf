package netboot

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// testLog sends the log to the test and closes up when the server says that it is up.
func testLog(t testing.TB, up chan struct{}) *slog.Logger {
	return slog.New(&testHandler{t: t, began: time.Now(), up: up, once: new(sync.Once)})
}

type testHandler struct {
	t     testing.TB
	began time.Time
	up    chan struct{}
	once  *sync.Once
}

func (h *testHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h *testHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%5.1f s %s %s", r.Time.Sub(h.began).Seconds(), r.Level, r.Message)
	r.Attrs(func(a slog.Attr) bool { b.WriteString(" " + a.String()); return true })
	h.t.Log(b.String())
	if strings.HasPrefix(r.Message, "network boot is up") {
		h.once.Do(func() { close(h.up) })
	}
	return nil
}

func (h *testHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *testHandler) WithGroup(string) slog.Handler      { return h }
