package netboot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// boot asks what a machine boots now, for who has its address and for nobody else.
func (c *conversation) boot(ctx context.Context, mac string, from netip.Addr) (Boot, error) {
	if err := c.owns(ctx, mac, from); err != nil {
		return Boot{}, c.refuse(from, err)
	}
	b, err := c.Booter.Boot(ctx, mac)
	if err != nil {
		return Boot{}, c.refuse(from, fmt.Errorf("look up boot: %w", err))
	}
	return b, nil
}

// mint makes the archive of this boot, for who has the address of the machine and for nobody else.
func (c *conversation) mint(ctx context.Context, mac string, from netip.Addr) ([]byte, error) {
	if err := c.owns(ctx, mac, from); err != nil {
		return nil, c.refuse(from, err)
	}
	b, err := c.Booter.Archive(ctx, mac, c.nets.four(from))
	if err != nil {
		return nil, c.refuse(from, fmt.Errorf("make archive: %w", err))
	}
	return b, nil
}

// owns returns an error unless the machine with this MAC address has the address that a request comes from: the one
// that is reserved for it, that it was given as a stranger, or that it took from another DHCP server.
func (c *conversation) owns(ctx context.Context, mac string, from netip.Addr) error {
	from = c.nets.four(from)
	if c.nosy.shut(from, time.Now()) {
		return fmt.Errorf("%s was refused too often: %w", from, ErrRefused)
	}
	lease, err := c.Booter.Lease(ctx, mac)
	unknown := errors.Is(err, ErrUnknown)
	if err != nil && !unknown {
		return fmt.Errorf("look up lease: %w", err)
	}
	if c.Mode == Proxy {
		return c.claims(ctx, mac, from)
	}
	if !unknown {
		if a := lease.Addr.Addr(); a != from {
			return fmt.Errorf("what machine %s boots was asked for from %s, its address is %s: %w", mac, from, a, ErrRefused)
		}
		return nil
	}
	for _, l := range c.links {
		for _, r := range l.ranges {
			if r.holder(from) == mac {
				return nil
			}
		}
	}
	return fmt.Errorf("what %s boots was asked for from %s, which it was not given: %w", mac, from, ErrUnknown)
}

// claims is owns beside another DHCP server: the machine said which address it takes, and on our own wire it must be
// the one that answers for it.
func (c *conversation) claims(ctx context.Context, mac string, from netip.Addr) error {
	if c.macOf(from) != mac {
		return fmt.Errorf("what machine %s boots was asked for from %s, which it did not take from a DHCP server: %w", mac, from, ErrRefused)
	}
	n, ok := c.nets.of(from)
	for _, l := range c.links {
		if !ok || l.ifname != n.Interface || l.arp == nil {
			continue
		}
		owner, used, err := l.arp.Ask(ctx, from)
		if err != nil {
			return fmt.Errorf("ask who has %s: %w", from, err)
		}
		if used && owner != mac {
			return fmt.Errorf("what machine %s boots was asked for from %s, which %s has: %w", mac, from, owner, ErrRefused)
		}
	}
	return nil
}

// refuse counts who asks for what is not his.
func (c *conversation) refuse(from netip.Addr, err error) error {
	if (errors.Is(err, ErrRefused) || errors.Is(err, ErrUnknown)) && c.nosy.refused(c.nets.four(from), time.Now()) {
		c.log.Warn("somebody asks again and again for what other machines boot; refused for a while", "from", from)
	}
	return err
}
