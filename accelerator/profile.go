package accelerator

import "strings"

// Profile is what is known of a card. What is zero is unknown: it is measured and not judged.
type Profile struct {
	ID        string // PCI vendor:device
	Name      string
	MemoryMiB int64 // as the driver reports it
	ECC       Has   // memory error correction that the driver can count
	MaxGen    int64 // PCIe generation
	MaxWidth  int64 // lanes
}

// Has says whether a card has something.
type Has string

// Answers.
const (
	Yes     Has = "yes"
	No      Has = "no"
	Perhaps Has = "" // unknown
)

// profiles returns what is known of the cards that are sold. Memory sizes are those that drivers were seen to report; sizes known
// from datasheets only (A100, H100: "80 GB") are not what a driver reports and stay unknown.
func profiles() []Profile {
	return []Profile{
		{ID: "10de:2b85", Name: "RTX 5090", MemoryMiB: 32607, ECC: No, MaxGen: 5, MaxWidth: 16},
		{ID: "10de:2bb9", Name: "RTX 6000D", MemoryMiB: 85651, MaxGen: 5}, // ×8 in some hosts
		{ID: "10de:20b0", Name: "A100 SXM 40GB", ECC: Yes, MaxGen: 4, MaxWidth: 16},
		{ID: "10de:20b2", Name: "A100 SXM 80GB", ECC: Yes, MaxGen: 4, MaxWidth: 16},
		{ID: "10de:20f1", Name: "A100 PCIe 40GB", ECC: Yes, MaxGen: 4, MaxWidth: 16},
		{ID: "10de:20b5", Name: "A100 PCIe 80GB", ECC: Yes, MaxGen: 4, MaxWidth: 16},
		{ID: "10de:2329", Name: "H20", MemoryMiB: 97871, ECC: Yes, MaxGen: 5, MaxWidth: 16},
		{ID: "10de:232c", Name: "H20 141GB", ECC: Yes, MaxGen: 5, MaxWidth: 16},
		{ID: "10de:2330", Name: "H100 SXM", ECC: Yes, MaxGen: 5, MaxWidth: 16},
		{ID: "10de:2335", Name: "H200 SXM", MemoryMiB: 143771, ECC: Yes, MaxGen: 5, MaxWidth: 16},
	}
}

// Profile returns what is known of a card; an operator's profile goes before the built-in one.
func (r Rules) Profile(id string) (Profile, bool) {
	for _, list := range [][]Profile{r.Profiles, profiles()} {
		for _, p := range list {
			if strings.EqualFold(p.ID, id) {
				return p, true
			}
		}
	}
	return Profile{}, false
}
