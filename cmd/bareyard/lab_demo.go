package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bareyard/bareyard/api/client"
	"github.com/bareyard/bareyard/lab"
	"github.com/bareyard/bareyard/machine"
)

// labDemo shows a newcomer the whole way: an order becomes a running, validated machine.
type labDemo struct {
	labShape
	Image string `default:"build/lab-image/debian-12.raw.zst" placeholder:"FILE" help:"The image to sell (default: build/lab-image/debian-12.raw.zst)."`
	Keep  bool   `help:"Leave the lab up at the end, to look around."`
}

// demoBandwidth is what the demo orders, Mbit/s.
const demoBandwidth = 100

// Run brings a lab up, orders a machine, uses it as a customer would, and takes the lab down again.
func (d *labDemo) Run(ctx context.Context, t *terminal) (err error) {
	began := time.Now()
	if d.Cards == 0 {
		d.Cards = 8 // machines as they are sold
	}
	cfg, err := d.config(nil)
	if err != nil {
		return err
	}
	if err := cfg.Check(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	say := func(format string, a ...any) { fmt.Fprintf(t.out, "\n== "+format+"\n", a...) }
	say("a virtual data centre: %s", d.Dir)
	if err := lab.Down(ctx, d.Dir, true); err != nil { // of an earlier demo; nothing there is fine too
		return err
	}
	if _, err := lab.Up(ctx, d.Dir, exec.Command(self, d.arguments()...)); err != nil {
		return err
	}
	if !d.Keep {
		defer func() {
			down, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			say("taking the lab down")
			if downErr := lab.Down(down, d.Dir, true); err == nil {
				err = downErr
			}
			if err == nil {
				fmt.Fprintf(t.out, "done, %s in all\n", time.Since(began).Round(time.Second))
			}
		}()
	}
	net := lab.Network(d.Name)
	if err := net.WaitServer(ctx); err != nil {
		return fmt.Errorf("%w; see %s/serve.log", err, d.Dir)
	}
	status, err := lab.NewClient(d.Dir).Status(ctx)
	if err != nil {
		return err
	}
	if err := printLab(t.out, status); err != nil {
		return err
	}
	socket := "unix://" + status.Server.Socket
	c, err := client.New(socket, "", "")
	if err != nil {
		return err
	}
	say("stocking it: machines, lines, classes, the image")
	records, err := lab.NewClient(d.Dir).Inventory(ctx)
	if err != nil {
		return err
	}
	if err := lab.Stock(ctx, c, records, d.Image); err != nil {
		return err
	}
	key, public, err := newKey(d.Dir)
	if err != nil {
		return err
	}
	class := records[0].Machine.Class
	remote := remote{Server: socket}
	if err := (&classList{remote}).Run(ctx, t); err != nil {
		return err
	}
	say("bareyard order create --class %s --image debian-12 --line bgp --bandwidth %d --ssh-key … --wait", class, demoBandwidth)
	create := orderCreate{remote: remote, Class: class, Image: "debian-12", Line: "bgp", Bandwidth: demoBandwidth, SSHKey: []string{public}, Hostname: "demo", Months: 1, Key: "demo", Wait: true}
	if err := create.Run(ctx, t); err != nil {
		return err
	}
	orders, err := c.Orders(ctx)
	if err != nil {
		return err
	}
	if err := d.use(ctx, t, net, orders[0], key, say); err != nil {
		return err
	}
	say("bareyard order report %s", orders[0].ID)
	if err := (&orderReport{oneOrder{remote, orders[0].ID}}).Run(ctx, t); err != nil {
		return err
	}
	if d.Keep {
		say("the lab stays up; for your shell:\nexport BAREYARD_SERVER=%s", socket)
	}
	return nil
}

// use logs in from the internet and measures what was ordered.
func (d *labDemo) use(ctx context.Context, t *terminal, net lab.Network, o machine.Order, key []byte, say func(string, ...any)) error {
	say("from the internet: ssh root@%s", o.Address)
	out, err := net.SSH(ctx, lab.Internet, o.Address, "root", key, "hostname; grep PRETTY_NAME /etc/os-release; df -h / | tail -1")
	if err != nil {
		return err
	}
	fmt.Fprint(t.out, out)
	say("bandwidth, ordered: %d Mbit/s each way", o.Bandwidth)
	got, err := net.Bandwidth(ctx, o.Address, "root", key, 5*time.Second)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "to the machine %.1f Mbit/s, from the machine %.1f Mbit/s\n", got.Down, got.Up)
	for _, rate := range []float64{got.Down, got.Up} {
		if ordered := float64(o.Bandwidth); rate < 0.9*ordered || rate > 1.1*ordered {
			return fmt.Errorf("measure bandwidth: %.1f Mbit/s is not within 10 %% of %d", rate, o.Bandwidth)
		}
	}
	return nil
}

// newKey makes an SSH key pair and keeps it in the lab's folder, for people who want to log in themselves.
func newKey(dir string) (private []byte, public string, err error) {
	pub, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("make SSH key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(key, "bareyard lab")
	if err != nil {
		return nil, "", fmt.Errorf("encode SSH key: %w", err)
	}
	authorized, err := ssh.NewPublicKey(pub)
	if err != nil {
		return nil, "", fmt.Errorf("encode SSH key: %w", err)
	}
	private = pem.EncodeToMemory(block)
	if err := os.WriteFile(filepath.Join(dir, "id_ed25519"), private, 0o600); err != nil {
		return nil, "", fmt.Errorf("keep SSH key: %w", err)
	}
	return private, string(ssh.MarshalAuthorizedKey(authorized)), nil
}
