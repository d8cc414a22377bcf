package ipmi

import (
	"context"
	"errors"
	"time"

	"github.com/bougou/go-ipmi/pkg/client"
	"github.com/bougou/go-ipmi/pkg/types"
)

// rmcpTries is how often a command that may be sent twice is sent before the BMC counts as silent.
const rmcpTries = 3

// ask sends a command that may be sent twice without harm. It sends it again when there is no answer, and after a moment when the
// BMC's interface is busy for a moment.
func ask[T any](ctx context.Context, r *rmcpConn, fn func(context.Context) (T, error)) (out T, err error) {
	for try := 1; ; try++ {
		err = r.wire.exchange(ctx, r.answer, func(ctx context.Context) error {
			var err error
			out, err = fn(ctx)
			return commandError(err)
		})
		switch {
		case try == rmcpTries || ctx.Err() != nil:
			return out, err
		case errors.Is(err, ErrUnreachable):
		case code(err) == types.CodeNodeBusy:
			select {
			case <-ctx.Done():
				return out, err
			case <-time.After(r.answer / 8):
			}
		default:
			return out, err
		}
	}
}

// raw asks with a request for which go-ipmi has no type, or reads its answer wrongly.
func (r *rmcpConn) raw(ctx context.Context, fn types.NetFn, cmd uint8, data ...byte) ([]byte, error) {
	res, err := ask(ctx, r, func(ctx context.Context) (*client.CommandRawResponse, error) {
		return r.c.RawCommand(ctx, fn, cmd, data, "")
	})
	if err != nil {
		return nil, err
	}
	return res.Response, nil
}

// code is the completion code in an error, or 0.
func code(err error) types.CompletionCode {
	var f *failure
	if !errors.As(err, &f) {
		return 0
	}
	return f.code
}
