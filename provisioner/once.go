package provisioner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/bareyard/bareyard/machine"
)

// once runs fn on an order, and leaves its answer in out. A request that carries a key which the order has seen before gets
// the first answer, or, where that is an order, the order as it is now; fn is not called again. Another request with the same
// key is a Conflict.
func (e *Engine) once(ctx context.Context, orderID, key string, request []any, out any, fn func(*Work) error) error {
	digest, err := digestOf(request)
	if err != nil {
		return err
	}
	return e.Store.OnOrder(ctx, orderID, func(w *Work) error {
		if key == "" {
			return fn(w)
		}
		answer, seen, err := w.Terms.Answered(ctx, orderID, key, digest)
		if err != nil {
			return err
		}
		if order, ok := out.(*machine.Order); ok && seen {
			*order = *w.Order
			return nil
		}
		if seen {
			return json.Unmarshal(answer, out)
		}
		if err := fn(w); err != nil {
			return err
		}
		if answer, err = json.Marshal(out); err != nil {
			return fmt.Errorf("remember answer: %w", err)
		}
		return w.Terms.Answer(ctx, orderID, key, digest, answer)
	})
}

// onOrderOnce runs fn on an order once for a key, and returns what became of the order.
func (e *Engine) onOrderOnce(ctx context.Context, id, key string, request []any, fn func(*Work) error) (o machine.Order, err error) {
	err = e.once(ctx, id, key, request, &o, func(w *Work) error {
		err := fn(w)
		o = *w.Order
		return err
	})
	if err != nil {
		return machine.Order{}, err
	}
	return o, nil
}

// answerAnew replaces what is remembered of a request that once has answered.
func (e *Engine) answerAnew(ctx context.Context, orderID, key string, request []any, out any) error {
	digest, err := digestOf(request)
	if err != nil {
		return err
	}
	answer, err := json.Marshal(out)
	if err != nil {
		return fmt.Errorf("remember answer: %w", err)
	}
	return e.Store.OnOrder(ctx, orderID, func(w *Work) error { return w.Terms.Answer(ctx, orderID, key, digest, answer) })
}

func digestOf(v any) (string, error) {
	content, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("digest request: %w", err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:]), nil
}
