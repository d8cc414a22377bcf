package remoteedge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/bareyard/bareyard/network"
)

// Handler serves an edge.
func Handler(edge network.Edge, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	answer := func(method, path string, fn func(*http.Request) (any, error)) {
		mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			status := http.StatusOK
			body, err := fn(r)
			if err != nil {
				log.Warn("request refused", "path", path, "err", err)
				status, body = problemOf(err)
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(body) // whoever asked is gone
		})
	}
	answer(http.MethodGet, pathPorts, func(r *http.Request) (any, error) { return edge.Read(r.Context()) })
	answer(http.MethodGet, pathCaps, func(r *http.Request) (any, error) { return edge.Caps(r.Context()) })
	answer(http.MethodGet, pathCounters, func(r *http.Request) (any, error) {
		cs, err := edge.Counters(r.Context())
		return reading{time.Now(), cs}, err
	})
	answer(http.MethodPost, pathProbe, func(r *http.Request) (any, error) {
		var addrs []netip.Prefix
		if err := decode(r, &addrs); err != nil {
			return nil, err
		}
		return network.Probe(r.Context(), edge, "", addrs)
	})
	answer(http.MethodPost, pathApply, func(r *http.Request) (any, error) {
		var c change
		if err := decode(r, &c); err != nil {
			return nil, err
		}
		// Whoever asks may give up; what was begun is ended all the same, as it would be begun again.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Minute)
		defer cancel()
		return struct{}{}, edge.Apply(ctx, c.Set, c.Remove)
	})
	return mux
}

// Serve answers servers at a listener until ctx ends.
func Serve(ctx context.Context, l net.Listener, edge network.Edge, log *slog.Logger) error {
	server := &http.Server{
		Handler: Handler(edge, log), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		err := server.Shutdown(end)
		if err != nil {
			err = server.Close()
		}
		stopped <- err
	})
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
