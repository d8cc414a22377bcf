package ipmi

import "context"

// InSession runs fn while a session with the BMC is open and held.
func (c *Controller) InSession(ctx context.Context, t Target, fn func()) error {
	l := c.hold(t)
	defer l.release()
	return l.do(ctx, func(conn) error { fn(); return nil })
}

// TryOften counts how often a silent BMC is asked within the default bound of an operation.
func (c *Controller) TryOften(ctx context.Context, asked func() error) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	_, err := c.known(ctx, silent(asked))
	return err
}

type silent func() error

func (s silent) power(context.Context) (Power, error) {
	_ = s()
	return Unknown, failf(ErrUnreachable, "no answer")
}
func (s silent) command(context.Context, Op, Power) error { return nil }
