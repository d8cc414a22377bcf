package load

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
)

// fetcher gets a file once and returns its length.
type fetcher func(ctx context.Context) (int64, error)

// transfers gets a file again and again for a time, in several lanes. What is under way when the time is over counts for what
// has come.
func (s Spec) transfers(ctx context.Context, lane func(n int) (fetcher, io.Closer, error)) (Result, error) {
	began := time.Now()
	end, cancel := context.WithDeadline(ctx, began.Add(s.For))
	defer cancel()
	lanes := make([]Result, s.Parallel)
	group, end := errgroup.WithContext(end)
	for i := range lanes {
		group.Go(func() error {
			fetch, closer, err := lane(i)
			if err != nil {
				return err
			}
			defer closer.Close()
			for {
				n, err := fetch(end)
				lanes[i].Bytes += n
				switch {
				case end.Err() != nil:
					return nil
				case err != nil:
					return err
				}
				lanes[i].Done++
			}
		})
	}
	if err := group.Wait(); err != nil {
		return Result{}, err
	}
	total := Result{Took: time.Since(began)}
	for _, r := range lanes {
		total.Done += r.Done
		total.Bytes += r.Bytes
	}
	return total, nil
}

// httpLane is a connection that is kept, and a file that comes over it again and again.
func (s Spec) httpLane(int) (fetcher, io.Closer, error) {
	t := &http.Transport{MaxConnsPerHost: 1, ReadBufferSize: 256 << 10, DisableCompression: true}
	url := fmt.Sprintf("http://%s%s", netip.AddrPortFrom(s.Server, s.Port), s.File)
	buf := make([]byte, 1<<20)
	fetch := func(ctx context.Context) (n int64, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return 0, err
		}
		res, err := t.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return 0, fmt.Errorf("get %s: %s", url, res.Status)
		}
		for {
			m, err := res.Body.Read(buf)
			n += int64(m)
			switch {
			case err == io.EOF && n == res.ContentLength:
				return n, nil
			case err != nil:
				return n, fmt.Errorf("get %s: %w after %d of %d bytes", url, err, n, res.ContentLength)
			}
		}
	}
	return fetch, closeFunc(t.CloseIdleConnections), nil
}

type closeFunc func()

func (f closeFunc) Close() error { f(); return nil }

// tftpLane is a machine that gets a file again and again, from its own address and a fresh port each time.
func (s Spec) tftpLane(n int) (fetcher, io.Closer, error) {
	c := &tftpClient{server: netip.AddrPortFrom(s.Server, 69), block: s.Block}
	fetch := func(ctx context.Context) (int64, error) { return c.fetch(ctx, s.Addr(n), s.File) }
	return fetch, closeFunc(func() {}), nil
}
