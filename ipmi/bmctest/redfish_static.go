package bmctest

import (
	"net/http"
	"path"
)

// static is the resources that do not change, by path.
func (r *Redfish) static() map[string]doc {
	id := r.Chassis.Identity()
	out := map[string]doc{
		"/redfish": {"v1": rfRoot},
		rfRoot + "{$}": {
			"@odata.id": rfRoot, "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Id": "RootService", "Name": "Root Service",
			"RedfishVersion": "1.17.0", "UUID": id.UUID, "Vendor": r.p.manufacturer, "Product": r.p.product,
			"Systems": link(rfSystems), "Chassis": link(rfChassis), "Managers": link(rfManagers),
			"SessionService": link("/redfish/v1/SessionService"), "AccountService": link("/redfish/v1/AccountService"),
			"UpdateService": link("/redfish/v1/UpdateService"), "Tasks": link("/redfish/v1/TaskService"), "Registries": link("/redfish/v1/Registries"),
			"Links": doc{"Sessions": link(rfSession)},
		},
		"/redfish/v1/SessionService": {"@odata.type": "#SessionService.v1_1_8.SessionService", "Id": "SessionService", "Name": "Session Service",
			"ServiceEnabled": true, "SessionTimeout": 1800, "Sessions": link(rfSession)},
		r.p.chassis: {"@odata.type": "#Chassis.v1_23_0.Chassis", "Id": path.Base(r.p.chassis), "Name": "Chassis", "ChassisType": "RackMount",
			"Manufacturer": r.p.manufacturer, "SerialNumber": id.Serial, "Model": id.Model, "AssetTag": "", "PowerState": "On", "Status": doc{"State": "Enabled", "Health": "OK"},
			"Sensors": link(r.p.chassis + "/Sensors"), "Thermal": link(r.p.chassis + "/Thermal"), "Power": link(r.p.chassis + "/Power"),
			"PowerSubsystem": link(r.p.chassis + "/PowerSubsystem"),
			"Links":          doc{"ComputerSystems": []doc{link(r.p.system)}, "ManagedBy": []doc{link(r.p.manager)}}},
		"/redfish/v1/UpdateService": {"@odata.type": "#UpdateService.v1_12_0.UpdateService", "Id": "UpdateService", "Name": "Update Service",
			"ServiceEnabled": true, "FirmwareInventory": link(rfFirmware)},
		"/redfish/v1/TaskService": {"@odata.type": "#TaskService.v1_2_1.TaskService", "Id": "TaskService", "Name": "Tasks", "Tasks": link(rfTasks)},
	}
	if r.p.thermal {
		delete(out[r.p.chassis], "Sensors")
		delete(out[r.p.chassis], "PowerSubsystem")
	} else {
		delete(out[r.p.chassis], "Thermal")
		delete(out[r.p.chassis], "Power")
	}
	for list, own := range map[string]string{rfSystems: r.p.system, rfChassis: r.p.chassis, rfManagers: r.p.manager} {
		var members []string
		for _, name := range r.p.before {
			other := list + "/" + name
			members = append(members, other)
			out[other] = doc{"@odata.type": "#ComputerSystem.v1_20_0.ComputerSystem", "Id": name, "Name": name, "Model": "Baseboard", "SerialNumber": "HGX-1",
				"UUID": "00000000-0000-0000-0000-000000000001", "PowerState": "On", "Status": doc{"State": "Enabled", "Health": "OK"}, "ManagerType": "BMC", "FirmwareVersion": "HGX-1"}
		}
		out[list] = collection(append(members, own)...)
	}
	out[r.p.system+"/BootOptions"] = collection(r.p.system+"/BootOptions/Boot0001", r.p.system+"/BootOptions/Boot0002", r.p.system+"/BootOptions/Boot0003")
	for id, path := range map[string]string{"Boot0001": "HD(1,GPT,0)/\\EFI\\debian\\shimx64.efi", "Boot0002": "PciRoot(0x0)/MAC(02005E102030,0x0)/IPv4(0.0.0.0)/Uri()", "Boot0003": nicPath} {
		out[r.p.system+"/BootOptions/"+id] = doc{"@odata.type": "#BootOption.v1_0_4.BootOption", "Id": id, "Name": id, "BootOptionReference": id, "BootOptionEnabled": true, "UefiDevicePath": path}
	}
	for _, empty := range []string{"/redfish/v1/AccountService/Roles", r.p.system + "/EthernetInterfaces", rfSession, rfTasks} {
		out[empty] = collection()
	}
	for p, d := range out {
		if d["@odata.id"] == nil && p != "/redfish" {
			d["@odata.id"] = p
		}
	}
	return out
}

func collection(members ...string) doc {
	list := []doc{}
	for _, m := range members {
		list = append(list, link(m))
	}
	return doc{"@odata.type": "#Collection.Collection", "Name": "Collection", "Members@odata.count": len(list), "Members": list}
}

// show answers with a resource, with an ETag where the service has them.
func (r *Redfish) show(w http.ResponseWriter, req *http.Request, out doc) {
	out["@odata.id"] = req.URL.Path
	if fault := r.fault(); fault.RequireETag {
		r.stamp(w, req, out, fault)
	}
	reply(w, http.StatusOK, out)
}

func missing(w http.ResponseWriter) {
	fail(w, http.StatusNotFound, "Base.1.18.ResourceMissingAtURI", "The resource was not found.")
}
