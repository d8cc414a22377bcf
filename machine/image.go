package machine

import (
	"fmt"
	"regexp"
	"slices"
	"time"
)

// Image is an operating system that can be put on a machine, in the catalogue's one form: the chunked store.
type Image struct {
	Name        string    `json:"name"`         // e.g. debian-12
	Digest      string    `json:"digest"`       // sha256 of the manifest, hex: names the exact content
	Size        int64     `json:"size"`         // bytes when written
	DefaultUser string    `json:"default_user"` // the account that gets the customer's SSH key
	BIOS        bool      `json:"bios"`         // boots under BIOS
	UEFI        bool      `json:"uefi"`         // boots under UEFI
	Driver      bool      `json:"driver"`       // brings the accelerators' driver
	Created     time.Time `json:"created"`

	ImageFacts
}

// ImageFacts is what its operator says of an image.
type ImageFacts struct {
	Family       string       `json:"family,omitempty"`       // e.g. debian
	Version      string       `json:"version,omitempty"`      // of the family, e.g. 12
	Architecture Architecture `json:"architecture,omitempty"` // empty means AMD64
	MinDisk      int64        `json:"min_disk,omitempty"`     // bytes that it asks of a system disk, where that is more than its size
	Drivers      []string     `json:"drivers,omitempty"`      // of accelerators, with their versions, e.g. nvidia-570.86
	Visibility   Visibility   `json:"visibility,omitempty"`   // empty means Public
	Projects     []string     `json:"projects,omitempty"`     // who may use it, where that is ForProjects
}

// Architecture is the kind of processor that an image is made for.
type Architecture string

// Architectures.
const (
	AMD64 Architecture = "amd64"
	ARM64 Architecture = "arm64"
)

// Visibility says who may use an image.
type Visibility string

// Visibilities.
const (
	Public      Visibility = "public"    // everybody, and it is in everybody's list
	Community   Visibility = "community" // everybody who knows its name
	ForProjects Visibility = "project"   // the projects that it names, and for others it does not exist
)

var word = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+:-]{0,62}$`)

// Check fills in what is left out and refuses what cannot be.
func (f *ImageFacts) Check() error {
	if f.Architecture == "" {
		f.Architecture = AMD64
	}
	if f.Visibility == "" {
		f.Visibility = Public
	}
	refuse := func(field, message, hint string) error {
		return &Error{Code: Invalid, Field: field, Message: message, Hint: hint}
	}
	for field, value := range map[string]string{"family": f.Family, "version": f.Version} {
		if value != "" && !word.MatchString(value) {
			return refuse(field, fmt.Sprintf("%s %q is no single word", field, value), "use letters, digits and . _ + : -, e.g. debian and 12")
		}
	}
	for _, d := range f.Drivers {
		if !word.MatchString(d) {
			return refuse("drivers", fmt.Sprintf("driver %q is no single word", d), "write e.g. nvidia-570.86")
		}
	}
	switch {
	case f.Architecture != AMD64 && f.Architecture != ARM64:
		return refuse("architecture", fmt.Sprintf("unknown architecture %q", f.Architecture), "amd64 or arm64")
	case f.MinDisk < 0:
		return refuse("min_disk", "the smallest disk has less than no bytes", "give bytes, or leave it out")
	case f.Visibility != Public && f.Visibility != Community && f.Visibility != ForProjects:
		return refuse("visibility", fmt.Sprintf("unknown visibility %q", f.Visibility), "public, community or project")
	case f.Visibility == ForProjects && (len(f.Projects) == 0 || slices.Contains(f.Projects, "")):
		return refuse("projects", "an image for projects names none", "name those who may use it")
	case f.Visibility != ForProjects && len(f.Projects) > 0:
		return refuse("visibility", fmt.Sprintf("an image that is %s names projects", f.Visibility), "make its visibility project, or name none")
	}
	return nil
}

// Boots reports whether the image boots on a machine with a firmware. All machines are amd64.
func (i Image) Boots(f Firmware) bool {
	return i.Architecture != ARM64 && (f == BIOS && i.BIOS || f == UEFI && i.UEFI)
}

// DiskNeeded returns how large a system disk must be, in bytes.
func (i Image) DiskNeeded() int64 { return max(i.Size, i.MinDisk) }

// UsableBy reports whether a project may use the image.
func (i Image) UsableBy(project string) bool {
	return i.Visibility != ForProjects || slices.Contains(i.Projects, project)
}
