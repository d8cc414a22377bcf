package bmctest

import (
	"context"
	"fmt"
	"io"
	"net"
)

// serveConsole joins ipmi_sim, which connects to l, to the host's serial port.
func (o *OpenIPMI) serveConsole(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("accept the console: %w", err)
		}
		if err := o.join(ctx, conn); err != nil && ctx.Err() == nil {
			o.front.log.Error("console ended", "err", err)
		}
	}
}

func (o *OpenIPMI) join(ctx context.Context, conn net.Conn) error {
	port, err := o.Console(ctx)
	if err != nil {
		_ = conn.Close()
		return fmt.Errorf("open serial port: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close(); _ = port.Close() })
	defer stop()
	out := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, port)
		_ = conn.Close()
		out <- err
	}()
	_, err = io.Copy(port, conn)
	_ = port.Close()
	if other := <-out; err == nil {
		err = other
	}
	return err
}
