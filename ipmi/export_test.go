package ipmi

import "context"

// InSession runs fn while a session with the BMC is open and held.
func (c *Controller) InSession(ctx context.Context, t Target, fn func()) error {
	l := c.hold(t)
	defer l.release()
	return l.do(ctx, func(conn) error { fn(); return nil })
}
