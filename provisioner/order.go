package provisioner

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// Request is what a customer asks for.
type Request struct {
	Project   string   `json:"project"`
	Class     string   `json:"class"`
	Image     string   `json:"image"`
	Line      string   `json:"line"`
	Bandwidth int      `json:"bandwidth"` // Mbit/s from the machine
	SSHKeys   []string `json:"ssh_keys"`
	Hostname  string   `json:"hostname"` // empty: made from the order
	Months    int      `json:"months"`   // zero: one

	BandwidthDown int           `json:"bandwidth_down"` // Mbit/s to the machine; zero: as from it
	Model         network.Model `json:"model"`          // empty: the first that the line sells
	Committed     int           `json:"committed"`      // burst: Mbit/s that are paid for in any case
	Addresses     int           `json:"addresses"`      // IPv4; zero: one
	IPv6          int           `json:"ipv6"`           // prefixes
}

var hostname = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Place checks a request, holds a machine and an address for it, and starts its job, all in one transaction. A key, if
// not empty, makes a repeated request return the first order. Nothing is touched when anything is wrong.
func (e *Engine) Place(ctx context.Context, r Request, key string) (machine.Order, error) {
	o := machine.Order{
		ID: NewID("o"), Project: r.Project, Class: r.Class, Image: r.Image, Line: r.Line, Bandwidth: r.Bandwidth,
		SSHKeys: r.SSHKeys, Hostname: r.Hostname, Months: max(r.Months, 1), State: machine.OrderPlaced,
	}
	digest, err := digestOf(r)
	if err != nil {
		return machine.Order{}, err
	}
	image, line, err := e.check(ctx, &o, r)
	if err != nil && key != "" { // what was on offer when he asked first may not be any more
		if first, there, err := e.Store.Placed(ctx, o.Project, key, digest); there || err != nil {
			return first, err
		}
	}
	if err != nil {
		return machine.Order{}, err
	}
	return e.Store.Place(ctx, o, key, digest, func(w *Work) error {
		for _, want := range []Want{{o.Line, 4, max(r.Addresses, 1)}, {o.Line, 6, r.IPv6}} {
			if want.Count == 0 {
				continue
			}
			got, err := w.Stock.Addresses(ctx, want, o.ID)
			if err != nil {
				return err
			}
			w.Order.Addresses = append(w.Order.Addresses, got...)
		}
		w.Order.Address = w.Order.Addresses[0].Addr()
		w.note("order.place", "%s with %s, line %s, %s, %d months", o.Class, o.Image, o.Line, Ordered(o), o.Months)
		return e.take(ctx, w, image, line.Site)
	})
}

// check fills in what the catalogue knows and refuses what cannot be delivered, before anything is touched.
func (e *Engine) check(ctx context.Context, o *machine.Order, r Request) (image machine.Image, line network.Line, err error) {
	class, err := e.Shelf.Class(ctx, o.Class)
	if err != nil {
		return image, line, err
	}
	image, err = e.image(ctx, o.Image, o.Project)
	if err != nil {
		return image, line, err
	}
	line, err = e.Shelf.Line(ctx, o.Line)
	if err != nil {
		return image, line, err
	}
	if err := checkNetwork(o, r, line); err != nil {
		return image, line, err
	}
	if r.Months < 0 || o.Months > 36 {
		return image, line, &machine.Error{Code: machine.Invalid, Field: "months", Message: fmt.Sprintf("a term of %d months is not offered", r.Months), Hint: "choose 1 to 36 months"}
	}
	if o.Hostname == "" {
		o.Hostname = strings.ReplaceAll(o.ID, "_", "-")
	}
	if !hostname.MatchString(o.Hostname) {
		return image, line, &machine.Error{Code: machine.Invalid, Field: "hostname", Message: fmt.Sprintf("hostname %q is not valid", o.Hostname),
			Hint: "use 1 to 63 lower-case letters, digits and hyphens, not at either end"}
	}
	if err := checkKeys(o.SSHKeys); err != nil {
		return image, line, err
	}
	o.ImageDigest = image.Digest
	o.Price, o.Currency = class.MonthlyPrice*int64(o.Months), class.Currency
	return image, line, nil
}

// image returns an image that a project may use, for this architecture. One that is for others does not exist.
func (e *Engine) image(ctx context.Context, name, project string) (machine.Image, error) {
	image, err := e.Shelf.Image(ctx, name)
	switch {
	case err != nil:
		return machine.Image{}, err
	case !image.UsableBy(project):
		return machine.Image{}, &machine.Error{Code: machine.NotFound, Message: fmt.Sprintf("no image %q", name), Hint: "list what there is with `bareyard image list`"}
	case image.Architecture == machine.ARM64:
		return machine.Image{}, &machine.Error{Code: machine.Invalid, Field: "image", Message: fmt.Sprintf("image %s is for arm64, and every machine is amd64", name), Hint: "choose an image for amd64"}
	}
	return image, nil
}

func checkKeys(keys []string) error {
	if len(keys) == 0 {
		return &machine.Error{Code: machine.Invalid, Field: "ssh_keys", Message: "no SSH key given", Hint: "give at least one public key: it is the only way in"}
	}
	if len(keys) > 64 {
		return &machine.Error{Code: machine.Invalid, Field: "ssh_keys", Message: fmt.Sprintf("%d SSH keys are too many", len(keys)), Hint: "give up to 64; the rest can be added on the machine"}
	}
	for _, k := range keys {
		if len(k) > 8<<10 {
			return &machine.Error{Code: machine.Invalid, Field: "ssh_keys", Message: "an SSH key is longer than 8 KiB", Hint: "shorten its comment"}
		}
		if strings.Contains(k, "PRIVATE KEY") {
			return &machine.Error{Code: machine.Invalid, Field: "ssh_keys", Message: "that is a private key; it was not stored", Hint: "give the .pub file"}
		}
		if _, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(k)); err != nil || len(rest) > 0 || strings.ContainsAny(strings.TrimSpace(k), "\r\n") {
			return &machine.Error{Code: machine.Invalid, Field: "ssh_keys", Message: fmt.Sprintf("SSH key %.24q… cannot be read", k),
				Hint: "give one line of an authorized_keys file, e.g. the content of ~/.ssh/id_ed25519.pub"}
		}
	}
	return nil
}

// take finds a machine for the order in w at the site of its line and starts its provision job.
func (e *Engine) take(ctx context.Context, w *Work, image machine.Image, site string) error {
	pick := Pick{Class: w.Order.Class, Site: site, Line: w.Order.Line, Image: image, Except: w.Order.Tried}
	m, err := w.Stock.Machine(ctx, pick)
	if machine.CodeOf(err) == machine.Exhausted {
		var taken bool
		if taken, err = e.interrupt(ctx, w, pick, err); taken {
			m = w.Machine
		} else if machine.CodeOf(err) == machine.Exhausted { // an examination may have ended between the two looks
			m, err = w.Stock.Machine(ctx, pick)
		}
	}
	if err != nil {
		return err
	}
	w.Machine = m
	if err := w.machineEvent(machine.Reserve, "held for order %s", w.Order.ID); err != nil {
		return err
	}
	m.OrderID, w.Order.MachineID = w.Order.ID, m.ID
	return e.startJob(w, machine.ProvisionJob, func(j *machine.Job) {
		j.Image, j.ImageDigest, j.Driver, j.WipeData = w.Order.Image, w.Order.ImageDigest, image.Driver, true
	})
}

// actPlace looks for another machine for an order whose machine failed, and fails the order when there is none.
func (e *Engine) actPlace(ctx context.Context, orderID string) error {
	o, err := e.Shelf.Order(ctx, orderID)
	if err != nil {
		return err
	}
	image, err := e.Shelf.ImageVersion(ctx, o.Image, o.ImageDigest)
	if err != nil {
		return err
	}
	line, err := e.Shelf.Line(ctx, o.Line)
	if err != nil {
		return err
	}
	return e.Store.OnOrder(ctx, orderID, func(w *Work) error {
		if w.Order.State != machine.OrderPlaced || w.Order.MachineID != "" {
			return nil
		}
		err := e.take(ctx, w, image, line.Site)
		if code := machine.CodeOf(err); code != machine.Exhausted && code != machine.Invalid {
			return err
		}
		w.Order.Reason = fmt.Sprintf("%s; no other machine of class %s is available", w.Order.Reason, w.Order.Class)
		if err := w.Stock.FreeAddresses(ctx, orderID, true); err != nil {
			return err
		}
		return w.orderEvent(machine.OrderFail, "%s", w.Order.Reason)
	})
}

// Cancel calls an order off before hand-over: its job stops where it is, and a machine that was touched is wiped.
// Cancelling a cancelled order again changes nothing.
func (e *Engine) Cancel(ctx context.Context, orderID string) (machine.Order, error) {
	return e.onOrder(ctx, orderID, func(w *Work) error {
		if w.Order.State == machine.OrderCancelled {
			return nil
		}
		if err := w.orderEvent(machine.OrderCancel, "cancelled"); err != nil {
			var me *machine.Error
			if errors.As(err, &me) && w.Order.State == machine.OrderActive {
				me.Hint = "the machine is yours already: release it with `bareyard order release`"
			}
			return err
		}
		if w.Machine == nil {
			return w.Stock.FreeAddresses(ctx, orderID, true)
		}
		if w.Job != nil {
			if err := w.jobEvent(machine.JobCancel, "the order was cancelled"); err != nil {
				return err
			}
		}
		if w.Machine.State == machine.Reserved {
			e.fence(w) // it may have been examined when the order took it: powered on, its port open whatever the record says
			w.Machine.OrderID = ""
			if err := w.Stock.FreeAddresses(ctx, orderID, false); err != nil {
				return err
			}
			return w.machineEvent(machine.Unreserve, "nothing was touched, back in stock")
		}
		return e.reclaim(w)
	})
}

// Release ends an active order: the machine is isolated, wiped, proven clean and returned to stock.
// Releasing an ended order again changes nothing.
func (e *Engine) Release(ctx context.Context, orderID string) (machine.Order, error) {
	return e.onOrder(ctx, orderID, func(w *Work) error {
		if w.Order.State == machine.OrderEnded {
			return nil
		}
		if err := w.orderEvent(machine.OrderEnd, "released"); err != nil {
			var me *machine.Error
			if errors.As(err, &me) && !w.Order.State.Terminal() {
				me.Hint = "it is not handed over yet: cancel it with `bareyard order cancel`"
			}
			return err
		}
		if w.Job != nil {
			if err := w.jobEvent(machine.JobCancel, "the order was released"); err != nil {
				return err
			}
		}
		return e.reclaim(w)
	})
}

func (e *Engine) reclaim(w *Work) error {
	if w.Machine.State == machine.Quarantined {
		e.fence(w)
		return nil // stays there until an operator has looked; it is reclaimed from there
	}
	if err := w.machineEvent(machine.Reclaim, "to be isolated, wiped and proven clean"); err != nil {
		return err
	}
	return e.startJob(w, machine.ReclaimJob, func(j *machine.Job) { j.WipeData = true })
}

// Reinstall puts an image on the machine of an active order. Everything on its system disk is lost, so consent must be
// the hostname, typed; data disks are kept unless wipeData. A repeated request with the same key begins no second one.
func (e *Engine) Reinstall(ctx context.Context, orderID, imageName, consent string, wipeData bool, key string) (machine.Order, error) {
	order, err := e.Shelf.Order(ctx, orderID)
	if err != nil {
		return machine.Order{}, err
	}
	image, unusable := e.image(ctx, imageName, order.Project) // of no account to who asks again
	var o machine.Order
	err = e.once(ctx, orderID, key, []any{"reinstall", imageName, consent, wipeData}, &o, func(w *Work) error {
		defer func() { o = *w.Order }()
		if unusable != nil {
			return unusable
		}
		if w.Order.State != machine.OrderActive {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("order is %s", w.Order.State), Hint: "only an active order can be reinstalled"}
		}
		if consent != w.Order.Hostname {
			return &machine.Error{Code: machine.Invalid, Field: "consent", Message: "reinstall erases the system disk and was not confirmed",
				Hint: fmt.Sprintf("confirm with the machine's hostname, %q", w.Order.Hostname)}
		}
		if w.Machine.State == machine.Quarantined || w.Machine.State == machine.Maintenance && w.Machine.Parked {
			return &machine.Error{Code: machine.Conflict, Message: "the machine was taken out of service by its operator", Hint: "wait until it is given back, or release the order; its disks are left as they are"}
		}
		if !image.Boots(w.Machine.Firmware) {
			return &machine.Error{Code: machine.Invalid, Field: "image", Message: fmt.Sprintf("image %s does not boot under %s", image.Name, w.Machine.Firmware),
				Hint: "choose an image made for this firmware"}
		}
		if disk, ok := w.Machine.Hardware.SystemDisk(); !ok || disk.Size < image.DiskNeeded() {
			return tooLarge(image, disk)
		}
		if w.Job != nil {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("a %s job is under way", w.Job.Kind), Hint: "wait for it to end"}
		}
		if err := w.machineEvent(machine.Provision, "reinstall with %s", image.Name); err != nil {
			return err
		}
		return e.startJob(w, machine.ReinstallJob, func(j *machine.Job) {
			j.Image, j.ImageDigest, j.Driver, j.WipeData = image.Name, image.Digest, image.Driver, wipeData
		})
	})
	if err != nil {
		return machine.Order{}, err
	}
	return o, nil
}

func tooLarge(image machine.Image, disk machine.Disk) error {
	return &machine.Error{Code: machine.Invalid, Field: "image",
		Message: fmt.Sprintf("image %s needs a disk of %d bytes; the system disk has %d", image.Name, image.DiskNeeded(), disk.Size),
		Hint:    "choose a smaller image or a class with a larger system disk"}
}

// PowerOps are the power operations that a customer may ask for.
var powerOps = map[string]ipmi.Op{"on": ipmi.OpOn, "off": ipmi.OpOff, "cycle": ipmi.OpCycle}

// SetPower switches the machine of an active order. Power off never frees the machine nor stops its charge.
func (e *Engine) SetPower(ctx context.Context, orderID, op string) error {
	verb, ok := powerOps[op]
	if !ok {
		return &machine.Error{Code: machine.Invalid, Field: "op", Message: fmt.Sprintf("power operation %q is not known", op), Hint: "use on, off or cycle"}
	}
	var m machine.Machine
	_, err := e.onOrder(ctx, orderID, func(w *Work) error {
		if w.Order.State != machine.OrderActive || w.Machine == nil || w.Machine.State != machine.Active {
			return &machine.Error{Code: machine.Conflict, Message: "the machine is not in your hands now", Hint: "wait until the order is active and no job is under way"}
		}
		m = *w.Machine
		w.note("machine.power", "power %s asked for", op)
		return nil
	})
	if err != nil {
		return err
	}
	if err := e.bmc(ctx, m, func(t ipmi.Target) error { return e.Power.SetPower(ctx, t, verb) }); err != nil {
		e.log().Error("power failed", "machine", m.Name, "op", op, "err", err)
		return &machine.Error{Code: machine.Unavailable, Message: fmt.Sprintf("power %s did not come about", op), Hint: "try again in a minute; the operator sees the cause"}
	}
	return nil
}

// Return starts the reclaim of a machine that is quarantined or in maintenance: the only way back to stock is through a wipe.
func (e *Engine) Return(ctx context.Context, machineID string) error {
	return e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		if w.Order != nil && slices.Contains([]machine.OrderState{machine.OrderActive, machine.OrderExpired}, w.Order.State) {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("order %s still holds this machine", w.Order.ID), Hint: "release the order first"}
		}
		if err := w.machineEvent(machine.Reclaim, "an operator returns it to stock"); err != nil {
			return err
		}
		return e.startJob(w, machine.ReclaimJob, func(j *machine.Job) { j.WipeData = true })
	})
}

// Move applies an event that an operator decides alone (park, unpark, retire, admit, quarantine) with his reason.
func (e *Engine) Move(ctx context.Context, machineID string, ev machine.Event, reason string) error {
	return e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		if ev == machine.Admit && w.Machine.State == machine.Accepting {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("machine %s is in an acceptance run", w.Machine.Name), Hint: "what has passed is admitted, through a wipe, with `bareyard acceptance admit`"}
		}
		if w.Job != nil {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("a %s job is under way on machine %s", w.Job.Kind, w.Machine.Name), Hint: "cancel the order or wait"}
		}
		held := w.Order != nil && (w.Order.State == machine.OrderActive || w.Order.State == machine.OrderExpired)
		if ev == machine.Retire && held {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("order %s still holds this machine", w.Order.ID), Hint: "release the order first"}
		}
		if ev == machine.Unpark && !held {
			return &machine.Error{Code: machine.Conflict, Message: "nobody holds this machine", Hint: "return it to stock with `bareyard machine return`, which wipes it"}
		}
		if err := w.machineEvent(ev, "%s", reason); err != nil {
			return err
		}
		w.Machine.Reason, w.Machine.Parked = reason, ev == machine.Park
		switch {
		case ev == machine.Unpark:
			w.Machine.Public = true // the edge is put right within the minute
		case ev == machine.Retire && w.Order != nil:
			w.Machine.OrderID = ""
			return w.Stock.FreeAddresses(ctx, w.Order.ID, true)
		}
		return nil
	})
}

// onOrder runs fn on an order and returns what became of it.
func (e *Engine) onOrder(ctx context.Context, id string, fn func(*Work) error) (machine.Order, error) {
	var o machine.Order
	err := e.Store.OnOrder(ctx, id, func(w *Work) error {
		err := fn(w)
		o = *w.Order
		return err
	})
	if err != nil {
		return machine.Order{}, err
	}
	return o, nil
}
