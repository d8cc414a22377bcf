package postgres_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/machine/trace"
	"github.com/bareyard/bareyard/postgres/postgrestest"
)

// TestTrace is what the store keeps of boots.
func TestTrace(t *testing.T) {
	c := postgrestest.Start(t)
	for name, test := range map[string]func(*testing.T, *postgrestest.Cluster){
		"in boots": inBoots, "repeats": repeats, "whose": whose, "bounded": bounded, "several servers": severalServers,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// enrolled puts machine n1 with the ports :01 and :02 of 52:54:00:00:00 into the database.
func enrolled(t *testing.T, db *postgrestest.DB) machine.Machine {
	t.Helper()
	if err := db.PutClass(t.Context(), machine.Class{Name: "c", Currency: "CNY"}); err != nil {
		t.Fatal(err)
	}
	m, err := db.Enroll(t.Context(), machine.Machine{Name: "n1", Class: "c", Firmware: machine.BIOS, BootAddr: netip.MustParseAddr("10.0.0.9"), BMC: machine.BMC{Protocol: "ipmi", Address: "10.1.0.9:623"},
		Hardware: machine.Hardware{NICs: []machine.NIC{{MAC: "52:54:00:00:00:01", Role: machine.ProvisionNIC}, {MAC: "52:54:00:00:00:02", Role: machine.PublicNIC}},
			Disks: []machine.Disk{{Serial: "D", Size: 1 << 30, Role: machine.SystemDisk}}}}, "secret", true)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// lines of a boot, a second apart.
type lines struct {
	at  time.Time
	all []trace.Line
}

func (l *lines) add(mac string, proto trace.Proto, asked string, change ...func(*trace.Line)) {
	l.at = l.at.Add(time.Second)
	x := trace.Line{At: l.at, MAC: mac, Proto: proto, Asked: asked, Got: "x", File: asked, Outcome: trace.Answered, Times: 1}
	if proto == trace.DHCP {
		stage, message, _ := strings.Cut(asked, " ")
		x.DHCP = &trace.DHCPFacts{Stage: stage, Message: message, Arch: 7}
	}
	for _, c := range change {
		c(&x)
	}
	l.all = append(l.all, x)
}

func (l *lines) boot(mac string) {
	l.add(mac, trace.BMC, "power on")
	l.add(mac, trace.DHCP, "pxe DISCOVER")
	l.add(mac, trace.DHCP, "pxe REQUEST")
	l.add(mac, trace.TFTP, "snponly.efi")
	l.add(mac, trace.DHCP, "ipxe DISCOVER")
	l.add(mac, trace.HTTP, "/boot/ipxe/"+mac+".ipxe")
}

func asked(b trace.Boot) string {
	var s []string
	for _, l := range b.Lines {
		s = append(s, fmt.Sprintf("%s×%d", l.Asked, l.Times))
	}
	return strings.Join(s, "|")
}

// inBoots: lines come back in boots, however they were cut into batches, and whichever server wrote them.
func inBoots(t *testing.T, cluster *postgrestest.Cluster) {
	const mac = "52:54:00:00:00:01"
	want := "power on×1|pxe DISCOVER×1|pxe REQUEST×1|snponly.efi×1|ipxe DISCOVER×1|/boot/ipxe/" + mac + ".ipxe×1"
	for _, size := range []int{1, 4, 7, 1000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			db := cluster.DB(t)
			m := enrolled(t, db)
			l := &lines{at: time.Now().Truncate(time.Second).Add(-time.Hour)}
			l.boot(mac)
			l.boot(mac)
			for rest := l.all; len(rest) > 0; rest = rest[min(size, len(rest)):] {
				if err := db.WriteTrace(t.Context(), rest[:min(size, len(rest))]); err != nil {
					t.Fatal(err)
				}
			}
			macs, err := db.Ports(t.Context(), m.Name)
			if err != nil || len(macs) != 2 {
				t.Fatalf("ports %v, %v", macs, err)
			}
			boots, err := db.Boots(t.Context(), macs)
			if err != nil || len(boots) != 2 {
				t.Fatalf("%d boots, %v", len(boots), err)
			}
			for _, b := range boots {
				if asked(b) != want || b.MAC != mac || !b.Ended.Equal(b.Lines[5].At) || !b.Began.Equal(b.Lines[0].At) {
					t.Errorf("boot %d from %s to %s:\n%s\nwant\n%s", b.Number, b.Began, b.Ended, asked(b), want)
				}
			}
			if boots[0].Number <= boots[1].Number {
				t.Error("the newest boot is not the first")
			}
		})
	}
}

// repeats: what is asked again and again is one line with a count, across batches.
func repeats(t *testing.T, cluster *postgrestest.Cluster) {
	db := cluster.DB(t)
	enrolled(t, db)
	l := &lines{at: time.Now().Truncate(time.Second).Add(-time.Hour)}
	for range 4 {
		l.add("52:54:00:00:00:01", trace.DHCP, "pxe DISCOVER")
	}
	for i := range 4 {
		if err := db.WriteTrace(t.Context(), l.all[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	boots, err := db.Boots(t.Context(), []string{"52:54:00:00:00:01"})
	if err != nil || len(boots) != 1 || asked(boots[0]) != "pxe DISCOVER×4" || boots[0].Lines[0].Last.Sub(boots[0].Lines[0].At) != 3*time.Second {
		t.Errorf("%+v, %v", boots, err)
	}
}

// whose: a line without a MAC address is that of the machine that has the address; of nobody, it is dropped.
func whose(t *testing.T, cluster *postgrestest.Cluster) {
	db := cluster.DB(t)
	enrolled(t, db)
	l := &lines{at: time.Now().Add(-time.Minute)}
	l.add("", trace.TFTP, "snponly.efi", func(l *trace.Line) { l.From = netip.MustParseAddr("10.0.0.9") })
	l.add("", trace.TFTP, "snponly.efi", func(l *trace.Line) { l.From = netip.MustParseAddr("10.0.0.77") })
	l.add("", trace.TFTP, "snponly.efi")
	if err := db.WriteTrace(t.Context(), l.all); err != nil {
		t.Fatal(err)
	}
	boots, err := db.Boots(t.Context(), []string{"52:54:00:00:00:01"})
	if err != nil || len(boots) != 1 || asked(boots[0]) != "snponly.efi×1" {
		t.Errorf("%+v, %v", boots, err)
	}
	var n int
	if err := db.Conn.QueryRow(t.Context(), `SELECT count(*) FROM boot`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d boots, %v", n, err)
	}
}

// bounded: boots of a machine, lines of a boot, and strangers.
func bounded(t *testing.T, cluster *postgrestest.Cluster) {
	db := cluster.DB(t)
	enrolled(t, db)
	const mac = "52:54:00:00:00:01"
	write := func(all []trace.Line) {
		t.Helper()
		for rest := all; len(rest) > 0; rest = rest[min(100, len(rest)):] {
			if err := db.WriteTrace(t.Context(), rest[:min(100, len(rest))]); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := &lines{at: time.Now().Add(-24 * time.Hour)}
	for range 25 {
		l.boot(mac)
	}
	for i := range 1000 { // a machine that does the same two things for ever
		l.add(mac, trace.HTTP, fmt.Sprintf("/x/%d", i%2))
	}
	write(l.all)
	boots, err := db.Boots(t.Context(), []string{mac})
	if err != nil || len(boots) != 20 {
		t.Fatalf("%d boots, %v; want 20", len(boots), err)
	}
	if n := len(boots[0].Lines); n > 400 || n < 300 || boots[0].Cut+n != 1006 || boots[0].Lines[0].Asked != "power on" || boots[0].Lines[n-1].Asked != "/x/1" {
		t.Errorf("%d lines, %d cut, from %s to %s", n, boots[0].Cut, boots[0].Lines[0].Asked, boots[0].Lines[n-1].Asked)
	}

	// A flood of made-up addresses pushes out other strangers, and never a machine.
	s := &lines{at: time.Now().Truncate(time.Second).Add(-time.Hour)}
	for i := range 140 {
		for range 4 {
			s.boot(fmt.Sprintf("02:00:00:00:%02x:%02x", i/256, i%256))
		}
	}
	const batch = 4 * 6 * 20 // of 20 strangers
	for rest := s.all; len(rest) > 0; rest = rest[min(batch, len(rest)):] {
		if err := db.WriteTrace(t.Context(), rest[:min(batch, len(rest))]); err != nil {
			t.Fatal(err)
		}
	}
	strangers, err := db.StrangerBoots(t.Context())
	if err != nil || len(strangers) != 64 || strangers[0].MAC != "02:00:00:00:00:8b" {
		t.Fatalf("%d strangers, %v, the newest %+v", len(strangers), err, strangers[0].MAC)
	}
	if boots, err = db.Boots(t.Context(), []string{strangers[0].MAC}); err != nil || len(boots) != 3 {
		t.Errorf("%d boots of a stranger, %v; want 3", len(boots), err)
	}
	if boots, err = db.Boots(t.Context(), []string{mac}); err != nil || len(boots) != 20 {
		t.Errorf("the flood left %d boots of the machine, %v", len(boots), err)
	}
	var flood []trace.Line // in one batch
	for i := range 500 {
		flood = append(flood, trace.Line{At: time.Now(), MAC: fmt.Sprintf("02:00:00:01:%02x:%02x", i/256, i%256), Proto: trace.DHCP, Asked: "x"})
	}
	flood = append(flood, trace.Line{At: time.Now(), MAC: "52:54:00:00:00:02", Proto: trace.DHCP, Asked: "mine"})
	if err := db.WriteTrace(t.Context(), flood); err != nil {
		t.Fatal(err)
	}
	if boots, err := db.Boots(t.Context(), []string{"52:54:00:00:00:02"}); err != nil || len(boots) != 1 {
		t.Errorf("the machine's line behind a flood: %d boots, %v", len(boots), err)
	}
}

// severalServers: several servers write at once; nothing is lost and nothing deadlocks.
func severalServers(t *testing.T, cluster *postgrestest.Cluster) {
	db := cluster.DB(t)
	enrolled(t, db)
	var g sync.WaitGroup
	for s := range 4 {
		g.Go(func() {
			for i := range 10 {
				var batch []trace.Line
				for _, mac := range []string{"52:54:00:00:00:01", "52:54:00:00:00:02", "02:00:00:00:00:01"} {
					batch = append(batch, trace.Line{At: time.Now(), MAC: mac, Node: fmt.Sprint(s), Proto: trace.HTTP, Asked: fmt.Sprint(s, i), Times: 1})
				}
				if s%2 == 1 {
					batch[0], batch[2] = batch[2], batch[0]
				}
				if err := db.WriteTrace(t.Context(), batch); err != nil {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	for _, mac := range []string{"52:54:00:00:00:01", "52:54:00:00:00:02", "02:00:00:00:00:01"} {
		boots, err := db.Boots(t.Context(), []string{mac})
		if err != nil || len(boots) != 1 || len(boots[0].Lines) != 40 {
			t.Errorf("%s: %+v, %v", mac, boots, err)
		}
	}
}
