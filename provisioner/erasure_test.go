package provisioner_test

import (
	"crypto/ed25519"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bareyard/bareyard/accelerator/document"
	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/provisioner"
)

// certified compares the certificates of erasures, and the signature of each where the server has a key.
func (y *yard) certified(f provisioner.ErasureFilter, want ...string) (ids []string) {
	y.t.Helper()
	f.Limit = 100
	list, err := y.db.Erasures(y.t.Context(), f)
	y.must(err)
	var got []string
	for _, c := range list {
		got = append(got, fmt.Sprintf("%s %s %s by %s: %s", c.Serial, c.Result(), c.Level, c.Method, c.Detail))
		ids = append(ids, c.ID)
		k, err := y.db.Erasure(y.t.Context(), c.ID)
		y.must(err)
		if len(y.ReportKey) == 0 {
			continue
		}
		if v, err := document.VerifyErasure(k.Body, y.ReportKey.Public().(ed25519.PublicKey)); err != nil || v.ID != c.ID || k.Key == "" {
			y.t.Errorf("certificate %s: %+v, %v", c.ID, v, err)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		y.t.Errorf("certificates\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return ids
}

// TestErasureCertificates: each disk of a machine that comes back has one that names the order, what was done, and why no more. What a RAM disk
// says of disks that the machine does not have, or says at length, goes nowhere.
func TestErasureCertificates(t *testing.T) {
	y := newYard(t)
	_, key, err := ed25519.GenerateKey(nil)
	y.must(err)
	y.ReportKey = key
	o := y.active(1, nil)
	m := y.machine(o.MachineID)
	_, err = y.Release(t.Context(), o.ID)
	y.must(err)
	y.turn(m.ID)
	r := y.bootAgent(m.ID)
	for r.last.Step != machine.StepEraseAll {
		r.do()
	}

	// The first attempt cannot erase one of them.
	failed := []machine.Erasure{{Serial: "SYS1", Method: "zeroout", Level: machine.Purge}, {Serial: "DAT1", Detail: "the disk is locked\x00"}, {Serial: "FOREIGN", Detail: "x"}}
	_, err = r.report(machine.Report{Step: machine.StepEraseAll, Phase: machine.Failed, Error: "erase disk DAT1", Result: encode(failed)})
	y.must(err)
	gaveUp := []string{"DAT1 not erased  by : the disk is locked", "SYS1 not erased  by zeroout: not read back: erase disk DAT1"}
	first := y.certified(provisioner.ErasureFilter{OrderID: o.ID}, gaveUp...)

	// The second finds none of them.
	y.turn(m.ID)
	r = y.bootAgent(m.ID)
	for r.last.Step != machine.StepEraseAll {
		r.do()
	}
	_, err = r.report(machine.Report{Step: machine.StepEraseAll, Phase: machine.Failed, Error: "no disk has serial number SYS1"})
	y.must(err)
	gaveUp = append(gaveUp, "DAT1 not erased  by : not read back: no disk has serial number SYS1", "SYS1 not erased  by : not read back: no disk has serial number SYS1")
	y.certified(provisioner.ErasureFilter{OrderID: o.ID}, gaveUp...)

	y.turn(m.ID)
	r = y.bootAgent(m.ID)
	for r.last.Step != machine.StepEraseAll {
		r.do()
	}
	_, err = r.report(machine.Report{Step: machine.StepEraseAll, Phase: machine.Done, Result: encode([]machine.Erasure{
		{Serial: "SYS1", Method: "nvme-sanitize-block+zeroout", Level: machine.Purge}, {Serial: "DAT1", Method: "overwrite", Level: machine.Clear}})})
	y.must(err)
	var lacks []string
	for range 100 {
		lacks = append(lacks, strings.Repeat("x", 1<<16))
	}
	proofs := []machine.Erasure{
		{Serial: "SYS1", Size: 1, Sampled: 1 << 20, Clean: true}, // read back by another boot: what was done is known from the step before
		{Serial: "DAT1", Method: "blkdiscard+zeroout", Level: "excellent", Sampled: 1 << 60, Clean: true, Lacks: lacks},
		{Serial: "FOREIGN", Sampled: 1, Clean: true},
	}
	_, err = r.report(machine.Report{Step: machine.StepProve, Phase: machine.Done, Result: encode(proofs)})
	y.must(err)
	y.turn(m.ID)
	all := y.certified(provisioner.ErasureFilter{OrderID: o.ID, MachineID: m.ID}, append(gaveUp, "SYS1 erased purge by nvme-sanitize-block+zeroout: ", "DAT1 erased  by blkdiscard+zeroout: ")...)
	y.certified(provisioner.ErasureFilter{Serial: "FOREIGN"})
	list, err := y.db.Erasures(t.Context(), provisioner.ErasureFilter{Serial: "DAT1", Limit: 1})
	y.must(err)
	if c := list[0]; !c.Clean || c.Size != c.Sampled || c.Size < 2 || len(c.Lacks) > 16 || len(c.Lacks[0]) > 4000 || c.Attempt != 3 || c.At.IsZero() || !slices.Contains(all, first[0]) {
		t.Errorf("certificate: %+v", c)
	}
	if got := y.machine(m.ID); got.State != machine.Available {
		t.Errorf("machine is %s: %s", got.State, got.Reason)
	}
}
