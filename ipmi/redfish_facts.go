package ipmi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// rfBootFacts reads the boot override and the boot order.
func (l *link) rfBootFacts(ctx context.Context, b *Baseline) error {
	system, err := l.rfSystem(ctx)
	if err != nil {
		return err
	}
	boot := system.body.obj("Boot")
	if boot == nil {
		return failf(ErrUnsupported, "it shows no Boot")
	}
	override := "none"
	if enabled := boot.str(rfEnabled); enabled != "" && enabled != "Disabled" && boot.str(rfTarget) != "None" {
		override = strings.Join([]string{enabled, boot.str(rfTarget), boot.str(rfMode)}, " ")
	}
	b.fact(override, subjectBoot, "override")
	if order, ok := boot.strs("BootOrder"); ok {
		b.fact(strings.Join(order, ","), subjectBoot, "order")
	}
	return nil
}

// rfServices is the services of a BMC by which somebody comes in, or by which it tells others.
var rfServices = []string{"HTTP", "HTTPS", "SSH", "Telnet", "IPMI", "SNMP", "KVMIP", "VirtualMedia", "SSDP", "RDP", "RFB"}

// rfServiceFacts reads which services of the BMC are on, by which channels the host may speak to it, and the keys that open its shell.
func (l *link) rfServiceFacts(ctx context.Context, b *Baseline) error {
	g := turns{l}
	manager, err := l.rfManager(ctx)
	if err != nil {
		return err
	}
	for _, property := range []string{"SerialConsole", "CommandShell", "GraphicalConsole"} {
		if o := manager.body.obj(property); o.has("ServiceEnabled") {
			b.fact(strconv.FormatBool(o.flag("ServiceEnabled", false)), subjectServices, property)
		}
	}
	protocols, err := follow(ctx, g, manager.body, "NetworkProtocol")
	if err != nil {
		return err
	}
	for _, name := range rfServices {
		o := protocols.body.obj(name)
		if !o.has("ProtocolEnabled") {
			continue
		}
		text := strconv.FormatBool(o.flag("ProtocolEnabled", false))
		if port, ok := o.integer("Port"); ok {
			text += " " + strconv.FormatInt(port, 10)
		}
		b.fact(text, subjectServices, name)
		if raw, ok := o["CommunityStrings"]; ok {
			b.fact(fingerprint(raw), subjectServices, name, "communities")
		}
	}
	if servers, ok := protocols.body.obj("NTP").strs("NTPServers"); ok {
		slices.Sort(servers)
		b.fact(strings.Join(servers, ","), subjectServices, "NTP", "servers")
	}
	if err := l.rfHostAccessFacts(ctx, b); err != nil && !isAny(err, ErrUnsupported) {
		return err
	}
	return l.rfKeyFacts(ctx, b)
}

// rfKeyFacts reads the SSH keys of the accounts, where the service shows them.
func (l *link) rfKeyFacts(ctx context.Context, b *Baseline) error {
	root, err := l.rfRoot(ctx)
	if err != nil {
		return err
	}
	g := turns{l}
	service, err := follow(ctx, g, root, "AccountService")
	if err == nil {
		_, err = each(ctx, g, service.body.obj("Accounts").str("@odata.id"), rfMembers, func(account resource) bool {
			list := account.body.obj("Keys").str("@odata.id")
			if list == "" || account.body.str("UserName") == "" {
				return true
			}
			var keys []string
			_, _ = each(ctx, g, list, 32, func(key resource) bool {
				keys = append(keys, fingerprint([]byte(key.body.str("KeyString"))))
				return true
			})
			slices.Sort(keys)
			b.fact(strings.Join(keys, ","), subjectServices, "ssh-keys", account.body.text("Id"))
			return true
		})
	}
	if isAny(err, ErrUnsupported) {
		return nil
	}
	return err
}

func fingerprint(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data))[:23] }

// rfCertificateFact is the certificate that the service shows on this connection.
func (l *link) rfCertificateFact(ctx context.Context, b *Baseline) error {
	return l.redfish(ctx, func(c *rfConn) error {
		if c.cert == "" {
			return failf(ErrUnsupported, "it is not spoken to over TLS")
		}
		b.fact(c.cert, subjectTLS, "sha256")
		return nil
	})
}
