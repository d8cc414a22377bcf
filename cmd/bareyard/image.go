package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/machine"
)

// imageCommand is the catalogue of operating systems.
type imageCommand struct {
	List   imageList   `cmd:"" help:"List images."`
	Show   imageShow   `cmd:"" help:"Show an image, also one that is in no list."`
	Ready  imageReady  `cmd:"" help:"List publishers' images that are ready to be imported."`
	Import imageImport `cmd:"" help:"Import an image: raw, qcow2, VMDK or VHD, compressed or not."`
}

type imageList struct{ remote }

// Run lists images.
func (i *imageList) Run(ctx context.Context, t *terminal) error {
	return i.call(ctx, func(ctx context.Context, c *client.Client) error {
		list, err := c.Images(ctx)
		if err != nil {
			return err
		}
		return i.show(t, list, func(w io.Writer) {
			fmt.Fprintln(w, "IMAGE\tFAMILY\tARCH\tSIZE\tBIOS\tUEFI\tDRIVER\tUSER\tVISIBLE\tDIGEST")
			for _, x := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%.1f GB\t%s\t%s\t%s\t%s\t%s\t%.12s\n", x.Name, familyOf(x), x.Architecture, float64(x.Size)/1e9, yesNo(x.BIOS), yesNo(x.UEFI), yesNo(x.Driver), x.DefaultUser, x.Visibility, x.Digest)
			}
		})
	})
}

func familyOf(i machine.Image) string {
	return cmp.Or(strings.TrimSpace(i.Family+" "+i.Version), "-")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

type imageShow struct {
	remote
	Name string `arg:"" help:"The image."`
}

// Run shows an image.
func (i *imageShow) Run(ctx context.Context, t *terminal) error {
	return i.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.Image(ctx, i.Name)
		if err != nil {
			return err
		}
		return i.show(t, x, func(w io.Writer) {
			fmt.Fprintf(w, "image\t%s\nfamily\t%s\narchitecture\t%s\nsize\t%d bytes\nsystem disk\tat least %d bytes\nfirmware\tBIOS %s, UEFI %s\n",
				x.Name, familyOf(x), x.Architecture, x.Size, x.DiskNeeded(), yesNo(x.BIOS), yesNo(x.UEFI))
			drivers := yesNo(x.Driver)
			if len(x.Drivers) > 0 {
				drivers = strings.Join(x.Drivers, ", ")
			}
			visible := string(x.Visibility)
			if len(x.Projects) > 0 {
				visible += ": " + strings.Join(x.Projects, ", ")
			}
			fmt.Fprintf(w, "drivers\t%s\nuser\t%s\nvisible\t%s\ncreated\t%s\ndigest\t%s\n", drivers, x.DefaultUser, visible, x.Created.Format("2006-01-02 15:04"), x.Digest)
		})
	})
}

type imageImport struct {
	remote
	Name   string `arg:"" optional:"" help:"Name in the catalogue, e.g. debian-12."`
	Source string `arg:"" optional:"" name:"file" help:"raw, qcow2, VMDK in one file or fixed VHD, as it is or in gzip, xz, zstd, bzip2 or lz4; or the http or https address from which the server fetches it."`
	Ready  string `placeholder:"DEFINITION" help:"Fetch what bareyard image ready lists under this name, and check it by its publisher's checksums."`

	SHA256 string `name:"sha256" placeholder:"HEX" help:"What the publisher says."`
	SHA512 string `name:"sha512" placeholder:"HEX" help:"What the publisher says."`
	Of     string `default:"downloaded" enum:"downloaded,written" help:"Which bytes that digest is of: the file as downloaded, or the disk as written (default: downloaded)."`
	sumsFlags

	Format  string   `placeholder:"raw|qcow2|vmdk|vhd" help:"Refuse anything else (default: whatever is found)."`
	Driver  bool     `help:"It brings the accelerators' driver: validation asks the driver, too."`
	Drivers []string `placeholder:"DRIVER" help:"Drivers in it, e.g. nvidia-570.86; implies --driver."`
	User    string   `placeholder:"NAME" help:"Account that gets the customer's key (default: root)."`

	Family   string   `placeholder:"NAME" help:"e.g. debian."`
	Version  string   `placeholder:"VERSION" help:"e.g. 12."`
	Arch     string   `default:"amd64" enum:"amd64,arm64" help:"amd64 or arm64 (default: amd64)."`
	MinDisk  float64  `placeholder:"GB" help:"Smallest system disk that it may be put on (default: its size)."`
	Visible  string   `default:"public" enum:"public,community,project" help:"public: in everybody's list; community: for who knows the name; project: for --projects only (default: public)."`
	Projects []string `placeholder:"PROJECT" help:"Who may use it."`
}

// Run sends the image, or has the server fetch it.
func (i *imageImport) Run(ctx context.Context, t *terminal) error {
	u := client.Upload{
		Name: i.Name, SHA256: i.SHA256, SHA512: i.SHA512, DigestOf: i.Of, Format: i.Format, DefaultUser: i.User, Driver: i.Driver,
		ImageFacts: machine.ImageFacts{Family: i.Family, Version: i.Version, Architecture: machine.Architecture(i.Arch), MinDisk: int64(i.MinDisk * 1e9),
			Drivers: i.Drivers, Visibility: machine.Visibility(i.Visible), Projects: i.Projects},
	}
	if err := i.fromDefinition(&u); err != nil {
		return err
	}
	u.DefaultUser = cmp.Or(u.DefaultUser, "root")
	var file io.Reader
	if isURL(i.Source) {
		u.URL = i.Source
	} else {
		f, err := os.Open(i.Source)
		if err != nil {
			return &machine.Error{Code: machine.Invalid, Field: "file", Message: fmt.Sprintf("read image: %v", err), Hint: "give a file of this machine, or an address that begins with https://"}
		}
		defer f.Close()
		file = f
	}
	signer, err := i.promised(ctx, i.Source, &u)
	if err != nil {
		return err
	}
	return i.call(ctx, func(ctx context.Context, c *client.Client) error {
		x, err := c.ImportImage(ctx, u, file)
		if err != nil {
			return err
		}
		checked := ""
		if signer != "" {
			checked = "\nits checksums are signed by " + signer
		}
		return i.tell(t, x, "image %s is in the catalogue: %.1f GB, digest %.12s%s", x.Name, float64(x.Size)/1e9, x.Digest, checked)
	})
}

func isURL(source string) bool {
	return strings.HasPrefix(source, "https://") || strings.HasPrefix(source, "http://")
}
