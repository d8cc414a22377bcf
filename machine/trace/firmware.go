package trace

// atLoader: firmware loads the loader, or should.
func (d *digest) atLoader(Context) (Diagnosis, bool) {
	l, s, g := d.fetch[loader], d.fetch[shim], d.fetch[grub]
	if last := g.last(); last != nil {
		switch last {
		case g.refused:
			return stopped("file-refused", "put the signed GRUB beside shim in boot.loader_dir", "it was refused GRUB: %s", orUnknown(last.Why)), true
		case g.broken:
			return stalled(grub, last), true
		case g.sent:
			return stopped("no-config", "Secure Boot may have refused GRUB (is it signed for this shim?), or GRUB has no driver for this port; look at the machine's console",
				"it loaded shim and GRUB, and GRUB has asked for no configuration"), true
		}
	}
	last := l.last()
	if x := s.last(); x != nil && (last == nil || x.last().After(last.last())) {
		last = x
	}
	switch {
	case last == nil:
		return Diagnosis{}, false
	case last == l.broken || last == s.broken:
		return stalled(loader, last), true
	case last == l.refused || last == s.refused:
		return stopped("file-refused", "is the loader in boot.loader_dir? Debian's package ipxe brings it", "it was refused %s: %s", name(last), orUnknown(last.Why)), true
	case last == l.probed || last == s.probed:
		return stopped("probe-only", "some firmware asks for the size from one port and for the file from another: a firewall may let only the first pass",
			"it asked for the size of %s, and never for the file", name(last)), true
	case d.loads >= loopTimes:
		return d.loop(), true
	case last == s.sent:
		return stopped("secure-boot", "Secure Boot refuses a shim that is not signed for this firmware; shim itself refuses a GRUB that its vendor did not sign. Look at the machine's console, and for the vendor's certificates in its setup",
			"it loaded %s, and has not asked for GRUB", name(last)), true
	case uefi(d.fwAck):
		return stopped("loader-silent", "with Secure Boot on, firmware refuses a loader without a signature: turn it off, or let it boot shim. Otherwise the loader has no driver for this port",
			"it loaded %s, and the loader has asked for no address", name(last)), true
	}
	return stopped("loader-silent", "the loader does not get along with this card's boot ROM: try another (undionly.kpxe, ipxe.pxe), or newer firmware of the card",
		"it loaded %s, and the loader has asked for no address", name(last)), true
}

// uefi reports whether an answer went to UEFI firmware.
func uefi(l *Line) bool { return l != nil && l.DHCP.Arch > 0 }

// atFirmware: firmware asks by DHCP.
func (d *digest) atFirmware(Context) (Diagnosis, bool) {
	if d.lastAsk == nil {
		return Diagnosis{}, false
	}
	newest := d.fwAck
	for _, l := range []*Line{d.fwNak, d.chose, d.declined} {
		if l != nil && (newest == nil || l.last().After(newest.last())) {
			newest = l
		}
	}
	switch {
	case newest == nil:
		return d.asksOnly(), true
	case newest == d.chose:
		return d.choseOther(), true
	case newest == d.declined:
		return stopped("declined", "find who answers ARP for its reserved address, and give one of the two another", "it declined the address that is reserved for it: another host uses it"), true
	case newest == d.fwNak:
		return stopped("refused", "it keeps asking for an address from elsewhere: another DHCP server may be on this network",
			"it asked for an address that is not its own, and was refused: %s", orUnknown(d.fwNak.Why)), true
	case d.fwAck.File == "" && d.fwAck.DHCP.Stage == StageHTTP:
		return stopped("no-url", "no loader for HTTP boot on this architecture is in boot.loader_dir; put one there, or let the firmware boot by PXE",
			"UEFI HTTP boot took the address %s and was given no URL (architecture %d)", d.fwAck.DHCP.Addr, d.fwAck.DHCP.Arch), true
	case d.fwAck.File == "":
		return stopped("no-loader", "no loader for this architecture is in boot.loader_dir", "it took an address and was given no loader (architecture %d)", d.fwAck.DHCP.Arch), true
	case d.fwAck.DHCP.Stage == StageHTTP:
		return stopped("loader-not-asked", "can it reach this server's boot port (boot.http_port) by TCP? Some firmware wants HTTP connections to be allowed in its setup",
			"it was told to load %s, and has not asked for it", d.fwAck.File), true
	}
	return stopped("loader-not-asked", "is TFTP, UDP port 69 of this server, open for it? Firmware may also have found the offer lacking: look at its screen",
		"it was told to load %s by TFTP, and has not asked for it", d.fwAck.File), true
}

// asksOnly: nothing but DISCOVERs, or REQUESTs that came to nothing.
func (d *digest) asksOnly() Diagnosis {
	asked := "its firmware asked " + times(max(d.discovers, 1)) + span(d.firstAsk, d.lastAsk)
	switch {
	case d.offers == 0:
		return unanswered("its firmware", max(d.discovers, 1), d.fwSilent)
	case d.lastAsk.DHCP.Proxied:
		return stopped("ignores-proxy", "let this server give the addresses, or let the other DHCP server name the loader (next-server and file)",
			"%s, was offered what to boot, and never requested: it ignores proxy offers, or no other server gave it an address", asked)
	case d.relay().IsValid():
		return stopped("relay-silent", "can the relay reach this server and be reached from it (route, firewall: UDP port 67 both ways)? Does it pass answers on to the port that asked (option 82)?",
			"%s through the relay %s, was offered an address each time, and never requested: the answers do not arrive", asked, d.relay())
	}
	return stopped("never-requested", "another DHCP server may be faster; or the answers do not arrive: look for a VLAN or a switch that filters DHCP (DHCP snooping: trust this server's port)",
		"%s, was offered an address each time, and never requested", asked)
}

func span(first, last *Line) string {
	d := last.last().Sub(first.At).Round(1e9)
	if d < 1e9 {
		return ""
	}
	return " in " + d.String()
}
