package ipmi

import (
	"context"
	"errors"
	"fmt"

	"github.com/bougou/go-ipmi/pkg/command/app"
	"github.com/bougou/go-ipmi/pkg/types"
)

// rmcpBootFacts reads the boot override. One that is valid for the next boot only is what the firmware would use up.
func (l *link) rmcpBootFacts(ctx context.Context, b *Baseline) error {
	return l.ipmi(ctx, func(r *rmcpConn) error {
		data, err := r.raw(ctx, types.NetFnChassisRequest, types.CommandGetSystemBootOptions.ID, byte(types.BootOptionParamSelector_BootFlags), 0, 0)
		if err != nil {
			return err
		}
		if len(data) < 4 {
			return failf(ErrUnsupported, "boot flags of %d bytes", len(data))
		}
		flags, device := data[2], data[3]>>2&0x0f
		override := "none"
		if flags&0x80 != 0 && data[1]&0x80 == 0 {
			override = fmt.Sprintf("device %d", device)
			if flags&0x40 != 0 {
				override += ", persistent"
			}
		}
		b.fact(override, subjectBoot, "override")
		return nil
	})
}

// rmcpServiceFacts reads what the LAN parameters say of who may come in: authentication types, the cipher suites' privileges, and the
// SNMP community, as a fingerprint.
func (l *link) rmcpServiceFacts(ctx context.Context, b *Baseline) error {
	return l.ipmi(ctx, func(r *rmcpConn) error {
		read := 0
		for _, p := range []struct {
			selector byte
			name     string
			secret   bool
		}{
			{byte(types.LanConfigParamSelector_AuthTypeEnables), "auth-types", false},
			{byte(types.LanConfigParamSelector_CipherSuitesPrivLevel), "cipher-suites", false},
			{byte(types.LanConfigParamSelector_CommunityString), "snmp-community", true},
			{byte(types.LanConfigParamSelector_AlertDestinationsCount), "alert-destinations", false},
		} {
			data, err := r.lanParam(ctx, types.LanConfigParamSelector(p.selector))
			if errors.Is(err, ErrUnsupported) || forbidden(err) {
				continue
			}
			if err != nil {
				return err
			}
			read++
			if value := fmt.Sprintf("%x", data); p.secret {
				b.fact(fingerprint(data), subjectServices, p.name)
			} else {
				b.fact(value, subjectServices, p.name)
			}
		}
		if read == 0 {
			return failf(ErrUnsupported, "it tells no such LAN parameter")
		}
		return nil
	})
}

// rmcpChannelFacts reads how the LAN channel and the system interface, by which the host speaks to its BMC, may be used.
func (l *link) rmcpChannelFacts(ctx context.Context, b *Baseline) error {
	return l.ipmi(ctx, func(r *rmcpConn) error {
		access, err := ask(ctx, r, func(ctx context.Context) (*app.GetChannelAccessResponse, error) {
			return r.c.GetChannelAccess(ctx, thisChannel, types.ChannelAccessOption_NonVolatile)
		})
		if err != nil {
			return err
		}
		b.fact(fmt.Sprintf("access %d, limit %d, user-level %t, per-message %t", access.AccessMode, access.MaxPrivilegeLevel, !access.UserLevelAuthDisabled, !access.PerMsgAuthDisabled), subjectChannel, "lan")
		return nil
	})
}
