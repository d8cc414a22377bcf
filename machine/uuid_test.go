package machine_test

import (
	"testing"

	"github.com/bareyard/bareyard/machine"
)

// TestA05UUIDByteOrders: one machine's UUID as SMBIOS, DHCP option 97, iPXE, Redfish and IPMI have it is one key, whichever of
// them came first; another machine's is not.
func TestA05UUIDByteOrders(t *testing.T) {
	forms := []string{
		"00112233-4455-6677-8899-AABBCCDDEEFF", // SMBIOS 2.6 and later, as people read it; Redfish
		"00112233-4455-6677-8899-aabbccddeeff",
		"{00112233-4455-6677-8899-AABBCCDDEEFF}",
		"33221100554477668899AABBCCDDEEFF",     // option 97
		"33221100-5544-7766-8899-aabbccddeeff", // iPXE's ${uuid}
		"FFEEDDCCBBAA99887766554433221100",     // IPMI's Get System GUID
		"ffeeddcc-bbaa-9988-7766-554433221100",
		"CCDDEEFF-AABB-8899-7766-554433221100", // the same, read as if it were SMBIOS
	}
	for _, a := range forms {
		for _, b := range forms {
			if !machine.SameUUID(a, b) {
				t.Errorf("%s and %s are not the same", a, b)
			}
		}
		for _, other := range []string{"00112233-4455-6677-8899-aabbccddee00", "11002233-4455-6677-8899-aabbccddeeff", "", "nonsense"} {
			if machine.SameUUID(a, other) || machine.SameUUID(other, a) {
				t.Errorf("%s and %q are the same", a, other)
			}
		}
	}
	// What boards have whose maker set none says nothing about which of them it is.
	for _, none := range []string{"", "00000000-0000-0000-0000-000000000000", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "03000200-0400-0500-0006-000700080009",
		"00020003-0004-0005-0006-000700080009", "03020100-0504-0706-0809-0a0b0c0d0e0f", "x", "0011"} {
		if key := machine.UUIDKey(none); key != "" {
			t.Errorf("%q has the key %s", none, key)
		}
	}
}

func TestSerialKey(t *testing.T) {
	for in, want := range map[string]string{
		" ABC1234 ": "abc1234", "S 1": "s 1", "LAB-by-n1": "lab-by-n1",
		"To Be Filled By O.E.M.": "", "Default string": "", "System Serial Number": "", "0123456789": "", "None": "", "N/A": "",
		"Not Specified": "", "0000000000": "", "....": "", "": "", "xx": "", "XXXXXXXX": "",
	} {
		if got := machine.SerialKey(in); got != want {
			t.Errorf("%q has the key %q, want %q", in, got, want)
		}
	}
}
