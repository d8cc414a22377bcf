package provisioner

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/yaml"

	"github.com/bareyard/bareyard/machine"
	"github.com/bareyard/bareyard/network"
)

// configure makes the order for the configure step: the cloud-init seed with a fresh token for the validator.
func (e *Engine) configure(w *Work) (*machine.Configure, error) {
	holder := w.Order
	if w.Job.Kind == machine.AcceptanceJob { // nobody: it is reached by its provisioning port alone, and nobody's key opens it
		holder = &machine.Order{Hostname: w.Machine.Name}
	}
	if holder == nil {
		return nil, fmt.Errorf("configure machine %s: no order holds it", w.Machine.Name)
	}
	secret, hash := newSecret()
	w.Spend = append(w.Spend, Ticket{Hash: hash, Role: OSRole, MachineID: w.Machine.ID, JobID: w.Job.ID, Attempt: w.Job.Attempt})
	seed, err := Seed(*w.Machine, *w.Job, *holder, SeedOptions{Agents: e.Agents, CA: e.CA, Token: secret, Resolver: e.Resolver, Net: e.bootNet(w.Machine.BootAddr)})
	if err != nil {
		return nil, err
	}
	return &machine.Configure{Seed: seed, Firmware: w.Machine.Firmware, Label: "Bareyard " + w.Job.Image}, nil
}

// SeedOptions is what a seed needs beside the machine, its job and its order.
type SeedOptions struct {
	Agents   string     // base URL that the validator calls
	CA       string     // PEM
	Token    string     // of the validator; useless once the job is over
	Resolver netip.Addr // zero for none
	Net      BootNet    // the machine's provisioning network
}

type cloudConfig struct {
	Hostname    string     `json:"hostname,omitempty"`
	Keys        []string   `json:"ssh_authorized_keys,omitempty"`
	DisableRoot *bool      `json:"disable_root,omitempty"`
	SSHPassword *bool      `json:"ssh_pwauth,omitempty"`
	Files       []seedFile `json:"write_files,omitempty"`
	Run         [][]string `json:"runcmd,omitempty"`
}

type seedFile struct {
	Path        string `json:"path"`
	Permissions string `json:"permissions"`
	Content     string `json:"content"`
}

// fetchValidator runs once in the installed OS: it fetches the validator over the provisioning port, which is closed
// at hand-over. The token is read from a file, never from the command line.
const fetchValidator = `set -eu
cd /var/lib/bareyard
for i in $(seq 1 120); do
  curl -fsS --max-time 60 --cacert ca.pem -H @header -o validate "$1/agent/v1/validator" && break
  sleep 1
done
chmod 700 validate
exec ./validate --server "$1" --ca ca.pem --token-file token
`

// Seed makes the files of the NoCloud seed partition. The instance id names the machine and the install job, so it is
// stable across reboots and new for each install.
func Seed(m machine.Machine, j machine.Job, o machine.Order, opt SeedOptions) (map[string]string, error) {
	no := false
	user := cloudConfig{Hostname: o.Hostname, Keys: o.SSHKeys, DisableRoot: &no, SSHPassword: &no}
	vendor := cloudConfig{
		Files: []seedFile{
			{Path: "/var/lib/bareyard/ca.pem", Permissions: "0644", Content: opt.CA},
			{Path: "/var/lib/bareyard/token", Permissions: "0600", Content: opt.Token},
			{Path: "/var/lib/bareyard/header", Permissions: "0600", Content: "Authorization: Bearer " + opt.Token + "\n"},
			{Path: "/var/lib/bareyard/fetch", Permissions: "0700", Content: fetchValidator},
		},
		Run: [][]string{{"sh", "-c", "setsid -f sh /var/lib/bareyard/fetch \"$0\" >/var/lib/bareyard/log 2>&1 </dev/null", opt.Agents}},
	}
	public, ok := m.Hardware.NICByRole(machine.PublicNIC)
	if !ok {
		return nil, fmt.Errorf("make seed of machine %s: no public port on record", m.Name)
	}
	provision, ok := m.Hardware.NICByRole(machine.ProvisionNIC)
	if !ok {
		return nil, fmt.Errorf("make seed of machine %s: no provisioning port on record", m.Name)
	}
	var dns []netip.Addr
	if opt.Resolver.IsValid() {
		dns = append(dns, opt.Resolver)
	}
	net, err := network.Seed{
		PublicMAC: public.MAC, Addrs: addressesOf(o), DNS: dns, Private: j.Kind == machine.AcceptanceJob,
		ProvisionMAC: provision.MAC, ProvisionAddr: netip.PrefixFrom(m.BootAddr, opt.Net.Prefix.Bits()),
		Server: hostOf(opt.Agents), ProvisionRouter: opt.Net.Router,
	}.NetworkConfig()
	if err != nil {
		return nil, fmt.Errorf("make seed of machine %s: %w", m.Name, err)
	}
	userData, err := yaml.Marshal(user)
	if err != nil {
		return nil, fmt.Errorf("encode user-data: %w", err)
	}
	vendorData, err := yaml.Marshal(vendor)
	if err != nil {
		return nil, fmt.Errorf("encode vendor-data: %w", err)
	}
	return map[string]string{
		"meta-data":      fmt.Sprintf("instance-id: %s-%s-%d\nlocal-hostname: %s\n", m.ID, j.ID, j.Attempt, o.Hostname),
		"user-data":      "#cloud-config\n" + string(userData),
		"vendor-data":    "#cloud-config\n" + string(vendorData),
		"network-config": string(net),
	}, nil
}
