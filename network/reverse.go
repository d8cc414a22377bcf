package network

import (
	"fmt"
	"net/netip"
	"strings"
)

// ReverseName is the name of an address in the reverse DNS, without a dot at the end: 7.113.0.203.in-addr.arpa.
func ReverseName(a netip.Addr) string {
	var parts []string
	raw := a.Unmap().AsSlice()
	for i := len(raw) - 1; i >= 0; i-- {
		if a.Unmap().Is4() {
			parts = append(parts, fmt.Sprint(raw[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%x.%x", raw[i]&15, raw[i]>>4))
		}
	}
	if a.Unmap().Is4() {
		return strings.Join(parts, ".") + ".in-addr.arpa"
	}
	return strings.Join(parts, ".") + ".ip6.arpa"
}
