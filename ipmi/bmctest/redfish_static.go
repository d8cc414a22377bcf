package bmctest

// static is the resources that do not change, by path.
func (r *Redfish) static() map[string]doc {
	id := r.Chassis.Identity()
	out := map[string]doc{
		"/redfish": {"v1": rfRoot},
		rfRoot + "{$}": {
			"@odata.id": rfRoot, "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Id": "RootService", "Name": "Root Service",
			"RedfishVersion": "1.17.0", "UUID": id.UUID, "Vendor": "Bareyard", "Product": "bmctest",
			"Systems": link("/redfish/v1/Systems"), "Chassis": link("/redfish/v1/Chassis"), "Managers": link("/redfish/v1/Managers"),
			"SessionService": link("/redfish/v1/SessionService"), "AccountService": link("/redfish/v1/AccountService"),
			"UpdateService": link("/redfish/v1/UpdateService"), "Links": doc{"Sessions": link(rfSession)},
		},
		"/redfish/v1/SessionService": {"@odata.type": "#SessionService.v1_1_8.SessionService", "Id": "SessionService", "Name": "Session Service",
			"ServiceEnabled": true, "SessionTimeout": 1800, "Sessions": link(rfSession)},
		"/redfish/v1/AccountService": {"@odata.type": "#AccountService.v1_13_0.AccountService", "Id": "AccountService", "Name": "Account Service",
			"Accounts": link("/redfish/v1/AccountService/Accounts"), "Roles": link("/redfish/v1/AccountService/Roles")},
		"/redfish/v1/Chassis/1": {"@odata.type": "#Chassis.v1_23_0.Chassis", "Id": "1", "Name": "Chassis", "ChassisType": "RackMount",
			"SerialNumber": id.Serial, "Model": id.Model, "PowerState": "On", "Status": doc{"State": "Enabled", "Health": "OK"},
			"Links": doc{"ComputerSystems": []doc{link(rfSystem)}, "ManagedBy": []doc{link("/redfish/v1/Managers/1")}}},
		"/redfish/v1/Managers/1": {"@odata.type": "#Manager.v1_19_0.Manager", "Id": "1", "Name": "Manager", "ManagerType": "BMC",
			"FirmwareVersion": "1.0", "Model": "bmctest", "Status": doc{"State": "Enabled", "Health": "OK"},
			"Links": doc{"ManagerForServers": []doc{link(rfSystem)}, "ManagerForChassis": []doc{link("/redfish/v1/Chassis/1")}}},
		"/redfish/v1/UpdateService": {"@odata.type": "#UpdateService.v1_12_0.UpdateService", "Id": "UpdateService", "Name": "Update Service",
			"ServiceEnabled": true, "FirmwareInventory": link("/redfish/v1/UpdateService/FirmwareInventory")},
		rfSystem + "/Bios": {"@odata.type": "#Bios.v1_2_1.Bios", "Id": "Bios", "Name": "BIOS Settings", "Attributes": doc{}},
	}
	for path, members := range map[string][]string{
		"/redfish/v1/Systems":                         {rfSystem},
		"/redfish/v1/Chassis":                         {"/redfish/v1/Chassis/1"},
		"/redfish/v1/Managers":                        {"/redfish/v1/Managers/1"},
		"/redfish/v1/UpdateService/FirmwareInventory": {},
		"/redfish/v1/AccountService/Accounts":         {},
		"/redfish/v1/AccountService/Roles":            {},
		rfSystem + "/EthernetInterfaces":              {},
		rfSession:                                     {},
	} {
		list := []doc{}
		for _, m := range members {
			list = append(list, link(m))
		}
		out[path] = doc{"@odata.type": "#Collection.Collection", "Name": "Collection", "Members@odata.count": len(list), "Members": list}
	}
	for path, d := range out {
		if d["@odata.id"] == nil && path != "/redfish" {
			d["@odata.id"] = path
		}
	}
	return out
}
