package bmctest

// Vendor is whose Redfish service a simulated BMC resembles: its paths, where it keeps what, and its habits. It is drawn from
// public documents and field reports, not from the machines.
type Vendor string

// Vendors. The zero value is a service that follows the standard.
const (
	OpenBMC    Vendor = "openbmc"    // one manager called bmc; media under the manager; If-Match not asked for
	IDRAC      Vendor = "idrac"      // sixteen account slots, most of them empty; BIOS settings wait for a job; media under the system
	ILO        Vendor = "ilo"        // the boot mode is read-only; BIOS settings wait for a restart and no job; 16 is all that accounts take
	AMI        Vendor = "ami"        // every PATCH needs the ETag; boot overrides go to the settings resource
	Supermicro Vendor = "supermicro" // resources are called 1; logs under the system
	HGX        Vendor = "hgx"        // an NVIDIA HGX board: HGX_Baseboard_0 comes first among systems, managers and chassis and is not the host
)

// Vendors lists them all.
func Vendors() []Vendor { return []Vendor{"", OpenBMC, IDRAC, ILO, AMI, Supermicro, HGX} }

// profile is what a vendor's service looks like.
type profile struct {
	manufacturer, product string
	system                string // paths
	chassis               string
	manager               string
	before                []string // names listed before ours in each collection, which are not the host
	mediaUnderSystem      bool
	media                 []string // names of the virtual drives; the last is a CD
	logUnderSystem        bool
	log                   string // name of the event log
	slots                 int    // account slots, all of them listed; 0 lists accounts only
	habits                Fault  // how it always is
	thermal               bool   // readings in Thermal and Power, rather than in Sensors
	hostAccess            string // how the host's own way to the BMC is shut: "" by a HostInterface, "none", or one of host*
}

func (v Vendor) profile() profile {
	p := profile{manufacturer: "Bareyard", product: "bmctest", system: "1", chassis: "1", manager: "1", media: []string{"Floppy1", "CD1"}, log: "SEL"}
	switch v {
	case OpenBMC:
		p.manufacturer, p.product, p.system, p.chassis, p.manager = "OpenBMC", "OpenBMC", "system", "chassis", "bmc"
		p.media, p.logUnderSystem, p.log = []string{"Slot_0", "Slot_1"}, true, "EventLog"
	case IDRAC:
		p.manufacturer, p.product, p.system, p.chassis, p.manager = "Dell Inc.", "Integrated Dell Remote Access Controller", "System.Embedded.1", "System.Embedded.1", "iDRAC.Embedded.1"
		p.mediaUnderSystem, p.media, p.log, p.slots, p.thermal = true, []string{"1", "2"}, "Sel", 16, true
		p.habits, p.hostAccess = Fault{BIOSNeedsJob: true}, hostDell
	case ILO:
		p.manufacturer, p.product = "HPE", "ProLiant"
		p.media, p.logUnderSystem, p.log, p.thermal = []string{"1", "2"}, true, "IML", true
		p.habits, p.hostAccess = Fault{Mode: ModeReadOnly}, hostHPE
	case AMI:
		p.manufacturer, p.product, p.system, p.chassis, p.manager = "AMI", "AMI Redfish Server", "Self", "Self", "Self"
		p.media, p.log = []string{"USB1", "CD1"}, "SEL"
		p.habits, p.hostAccess = Fault{RequireETag: true, SettingsBoot: true}, "none"
	case Supermicro:
		p.manufacturer, p.product = "Supermicro", "Supermicro"
		p.media, p.logUnderSystem, p.log, p.slots, p.thermal = []string{"VirtualMedia1"}, false, "Log1", 10, true
		p.hostAccess = hostSupermicro
	case HGX:
		p.manufacturer, p.product, p.system, p.chassis, p.manager = "NVIDIA", "DGX", "DGX", "DGX", "BMC"
		p.before = []string{"HGX_Baseboard_0"}
		p.media, p.logUnderSystem, p.log = []string{"USB1", "USB2"}, true, "SEL"
	}
	p.system, p.chassis, p.manager = rfSystems+"/"+p.system, rfChassis+"/"+p.chassis, rfManagers+"/"+p.manager
	return p
}

// over is the faults with a vendor's habits below them.
func (f Fault) over(habits Fault) Fault {
	f.BIOSNeedsJob = f.BIOSNeedsJob || habits.BIOSNeedsJob
	f.RequireETag = f.RequireETag || habits.RequireETag
	f.SettingsBoot = f.SettingsBoot || habits.SettingsBoot
	if f.Mode == "" {
		f.Mode = habits.Mode
	}
	return f
}
