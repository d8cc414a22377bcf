package provisioner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/bareyard/bareyard/ipmi"
	"github.com/bareyard/bareyard/machine"
)

// Where there is no boot from the network a machine gets its RAM disk on a disc that its BMC inserts. The disc is the same for all but for
// the archive of one boot; the boot window, the nonce and the reserved address are those of a boot from the network.

// Drives handles virtual drives; answered by ipmi.Controller.
type Drives interface {
	InsertMedia(ctx context.Context, t ipmi.Target, address string) (ipmi.Media, error)
	EjectMedia(ctx context.Context, t ipmi.Target) error
}

// Discs remembers in which machines a disc may be: it is written before a BMC is asked, and forgotten when the drive was seen empty.
type Discs interface {
	Disc(ctx context.Context, machineID string) (string, error)
	PutDisc(ctx context.Context, machineID, image string) error
	// EmptyDisc forgets a disc. Another that was put in its place meanwhile is remembered.
	EmptyDisc(ctx context.Context, machineID, was string) error
	// DiscsLeft lists machines in which one may be though no job is at work on them.
	DiscsLeft(ctx context.Context) ([]string, error)
}

// ejectWithin bounds the emptying of one machine's drives.
const ejectWithin = 30 * time.Second

// mediaAfter is how many starts of an attempt must have failed to bring the machine onto the wire before virtual media is tried.
const mediaAfter = 2

// byMedia reports whether a job boots the RAM disk of its machine from virtual media.
func byMedia(m *machine.Machine, j *machine.Job) bool { return m.Boot == machine.BootMedia || j.Media }

// offersMedia reports whether virtual media may help a machine that is not seen to boot from the network.
func (e *Engine) offersMedia(m *machine.Machine) bool {
	return e.Drives != nil && e.MediaURL != nil && m.BMC.Protocol == ipmi.Redfish
}

// powerOnMedia inserts the disc of this boot and starts the machine from it. Whatever was in the drives before goes out.
func (e *Engine) powerOnMedia(ctx context.Context, m machine.Machine, j machine.Job) error {
	if !e.offersMedia(&m) {
		return fmt.Errorf("boot %s from virtual media: this server serves no disc; set boot.media_listen", m.Name)
	}
	image := e.MediaURL(m, j)
	if err := e.Discs.PutDisc(ctx, m.ID, image); err != nil {
		return err
	}
	uefi := m.Firmware == machine.UEFI
	return e.bmc(ctx, m, func(t ipmi.Target) error {
		if err := e.Drives.EjectMedia(ctx, t); err != nil {
			return err
		}
		if _, err := e.Drives.InsertMedia(ctx, t, image); err != nil {
			return err
		}
		err := e.Power.SetNextBoot(ctx, t, ipmi.DeviceMedia, uefi)
		if errors.Is(err, ipmi.ErrOff) {
			return e.Power.BootFrom(ctx, t, ipmi.DeviceMedia, uefi)
		}
		if err != nil {
			return err
		}
		return e.Power.SetPower(ctx, t, ipmi.OpOn)
	})
}

// discError is that a machine is off and what we may have inserted is not seen to be out. Its power is not cut again for that, nor its disks erased.
type discError struct{ err error }

func (d *discError) Error() string { return "a disc is left in its virtual drive: " + d.err.Error() }
func (d *discError) Unwrap() error { return d.err }

// ejectDisc takes out what we may have inserted, and returns nil only when the drives were seen empty, or nothing of ours is in them.
func (e *Engine) ejectDisc(ctx context.Context, m machine.Machine) error {
	if e.Drives == nil || e.Discs == nil {
		return nil
	}
	image, err := e.Discs.Disc(ctx, m.ID)
	if err != nil || image == "" {
		return err
	}
	if err := e.bmc(ctx, m, func(t ipmi.Target) error { return e.Drives.EjectMedia(ctx, t) }); err != nil && !errors.Is(err, ipmi.ErrUnsupported) {
		return err
	}
	return e.Discs.EmptyDisc(ctx, m.ID, image)
}

// EmptyDrives takes out what jobs left in drives, again and again until ctx ends. Every replica may run it.
func (e *Engine) EmptyDrives(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := e.ejectLeft(ctx); err != nil && ctx.Err() == nil {
			e.log().Warn("virtual media is still inserted", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// ejectLeft takes out the discs that a job left behind, whoever died before it could.
func (e *Engine) ejectLeft(ctx context.Context) error {
	if e.Drives == nil || e.Discs == nil {
		return nil
	}
	ids, err := e.Discs.DiscsLeft(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		m, err := e.Shelf.Machine(ctx, id)
		if err == nil && m.JobID == "" {
			bounded, cancel := context.WithTimeout(ctx, ejectWithin)
			err = e.ejectDisc(bounded, m)
			cancel()
		}
		if err != nil { // the drives of the others are emptied all the same
			errs = append(errs, fmt.Errorf("eject virtual media: %w", err))
		}
	}
	return errors.Join(errs...)
}

// MintDisc makes the boot file for the disc of a boot, as MintBoot does for a boot from the network: with a one-time nonce that only the
// machine's reserved address may trade, within the boot window of this attempt. That the one who asks is the machine's BMC shows in the
// disc's name alone, which nobody else was told.
func (e *Engine) MintDisc(ctx context.Context, machineID, jobID string, attempt int) ([]byte, error) {
	secret, hash := newSecret()
	var mac string
	err := e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		if !BootWindow(w.Job) || w.Job.ID != jobID || w.Job.Attempt != attempt || !byMedia(w.Machine, w.Job) {
			return fmt.Errorf("disc of machine %s outside its boot window: %w", w.Machine.Name, ErrDenied)
		}
		nic, ok := w.Machine.Hardware.NICByRole(machine.ProvisionNIC)
		if !ok {
			return fmt.Errorf("disc of machine %s: no provisioning port on record: %w", w.Machine.Name, ErrDenied)
		}
		mac = nic.MAC
		ticket := Ticket{Hash: hash, Role: NonceRole, MachineID: machineID, JobID: jobID, Attempt: attempt}
		if !e.ForeignDHCP {
			ticket.Addr = w.Machine.BootAddr
		}
		w.Spend = append(w.Spend, ticket)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(BootFile{Server: e.Agents, CA: e.CA, Nonce: secret, MAC: mac})
}

// SetRoad changes by which road a machine gets its RAM disk, unless a job is at work on it.
func (e *Engine) SetRoad(ctx context.Context, machineID string, road machine.Boot) error {
	return e.Store.OnMachine(ctx, machineID, func(w *Work) error {
		if w.Machine.JobID != "" {
			return &machine.Error{Code: machine.Conflict, Message: fmt.Sprintf("a job is at work on machine %s", w.Machine.Name), Hint: "wait for it, or cancel it first"}
		}
		changed := *w.Machine
		changed.Boot = road
		if err := machine.CheckRecord(changed); err != nil {
			return err
		}
		if w.Machine.Boot != road {
			w.Machine.Boot = road
			w.note("machine.boot", "boots its RAM disk %s from now on", roadText(road))
		}
		return nil
	})
}

func roadText(b machine.Boot) string {
	if b == machine.BootMedia {
		return "from virtual media"
	}
	return "from the network"
}
