package bmctest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"path"
)

// serveManager serves what the BMC says of itself: its network, its services and the firmware of the machine.
func (r *Redfish) serveManager() {
	r.services = map[string]any{
		"HTTPS": doc{"ProtocolEnabled": true, "Port": 443}, "SSH": doc{"ProtocolEnabled": false, "Port": 22},
		"IPMI": doc{"ProtocolEnabled": false, "Port": 623}, "SNMP": doc{"ProtocolEnabled": false, "Port": 161},
		"KVMIP": doc{"ProtocolEnabled": true}, "NTP": doc{"ProtocolEnabled": true, "NTPServers": []string{"192.0.2.1"}},
	}
	r.mux.HandleFunc("GET "+r.p.manager, func(w http.ResponseWriter, req *http.Request) {
		out := doc{"@odata.type": "#Manager.v1_19_0.Manager", "Id": path.Base(r.p.manager), "Name": "Manager", "ManagerType": "BMC",
			"FirmwareVersion": r.Board.version("BMC"), "Model": r.p.product, "Status": doc{"State": "Enabled", "Health": "OK"},
			"EthernetInterfaces": link(r.p.manager + "/EthernetInterfaces"), "NetworkProtocol": link(r.p.manager + "/NetworkProtocol"),
			"LogServices": link(r.p.manager + "/LogServices"), "VirtualMedia": link(r.p.manager + "/VirtualMedia"),
			"SerialConsole": doc{"ServiceEnabled": false},
			"Links":         doc{"ManagerForServers": []doc{link(r.p.system)}, "ManagerForChassis": []doc{link(r.p.chassis)}}}
		if r.p.mediaUnderSystem {
			delete(out, "VirtualMedia")
		}
		if r.fault().BIOSNeedsJob {
			out["Links"].(doc)["Oem"] = doc{"Dell": doc{"Jobs": link(r.p.manager + "/Jobs")}}
		}
		r.linkHost(out)
		r.show(w, req, out)
	})
	r.mux.HandleFunc("GET "+r.p.manager+"/EthernetInterfaces", func(w http.ResponseWriter, req *http.Request) {
		r.show(w, req, collection(r.p.manager+"/EthernetInterfaces/eth0"))
	})
	r.mux.HandleFunc("GET "+r.p.manager+"/EthernetInterfaces/eth0", func(w http.ResponseWriter, req *http.Request) {
		l := r.Board.LAN()
		v4 := doc{"AddressOrigin": map[string]string{"dhcp": "DHCP", "static": "Static"}[l.Source]}
		if l.Address.IsValid() {
			v4["Address"], v4["SubnetMask"] = l.Address.Addr().String(), mask(l.Address.Bits())
		}
		if l.Gateway.IsValid() {
			v4["Gateway"] = l.Gateway.String()
		}
		r.show(w, req, doc{"@odata.type": "#EthernetInterface.v1_9_0.EthernetInterface", "Id": "eth0", "Name": "Manager Ethernet", "MACAddress": l.MAC,
			"InterfaceEnabled": true, "HostName": l.Hostname, "VLAN": doc{"VLANEnable": l.VLAN != 0, "VLANId": l.VLAN}, "IPv4Addresses": []doc{v4}, "Status": doc{"State": "Enabled", "Health": "OK"}})
	})
	r.mux.HandleFunc("GET "+r.p.manager+"/NetworkProtocol", func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		out := doc(maps.Clone(r.services))
		r.mu.Unlock()
		out["@odata.type"], out["Id"], out["Name"] = "#ManagerNetworkProtocol.v1_9_0.ManagerNetworkProtocol", "NetworkProtocol", "Manager Network Protocol"
		r.hostProtocol(out)
		r.show(w, req, out)
	})
	r.mux.HandleFunc("GET "+rfFirmware, func(w http.ResponseWriter, req *http.Request) {
		var paths []string
		for _, f := range r.Board.Firmware() {
			paths = append(paths, rfFirmware+"/"+f.ID)
		}
		r.show(w, req, collection(paths...))
	})
	r.mux.HandleFunc("GET "+rfFirmware+"/{id}", func(w http.ResponseWriter, req *http.Request) {
		for _, f := range r.Board.Firmware() {
			if f.ID != req.PathValue("id") || r.Faults.Now().EmptyCollection {
				continue
			}
			out := doc{"@odata.type": "#SoftwareInventory.v1_10_0.SoftwareInventory", "Id": f.ID, "Name": f.Name, "Version": f.Version, "Updateable": true, "Status": doc{"State": "Enabled", "Health": "OK"}}
			if r.Faults.Now().OddTypes {
				out["Updateable"], out["Status"], out["LowestSupportedVersion"] = "yes", "OK", 7
			}
			r.show(w, req, out)
			return
		}
		missing(w)
	})
}

// SetService switches a service of the BMC, such as SSH, as somebody with access would.
func (r *Redfish) SetService(name string, enabled bool) {
	r.build()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.services[name] = doc{"ProtocolEnabled": enabled}
}

func mask(bits int) string {
	m := ^uint32(0) << (32 - bits)
	return fmt.Sprintf("%d.%d.%d.%d", byte(m>>24), byte(m>>16), byte(m>>8), byte(m))
}

// decode reads a request's body, and answers it when that is no JSON.
func decode(w http.ResponseWriter, req *http.Request, into any) bool {
	if err := json.NewDecoder(req.Body).Decode(into); err != nil {
		fail(w, http.StatusBadRequest, "Base.1.18.MalformedJSON", "The request body could not be parsed.")
		return false
	}
	return true
}
