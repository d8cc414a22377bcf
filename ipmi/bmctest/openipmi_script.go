package bmctest

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/bareyard/bareyard/ipmi"
)

// script answers ipmi_sim's chassis script: "get power boot", "set power 1", "set reset 1", "set boot pxe",
// "set shutdown 1".
func (o *OpenIPMI) script(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1024))
	words := strings.Fields(string(body))
	if err != nil || len(words) < 2 {
		http.Error(w, "bad words", http.StatusBadRequest)
		return
	}
	o.front.log.Debug("ipmi_sim calls", "words", words)
	switch verb, args := words[0], words[1:]; verb {
	case "get":
		o.get(w, req, args)
	case "set", "check":
		if len(args) != 2 {
			http.Error(w, "bad words", http.StatusBadRequest)
			return
		}
		if verb == "set" {
			o.set(w, req, args[0], args[1])
		}
	default:
		http.Error(w, "no such verb", http.StatusBadRequest)
	}
}

func (o *OpenIPMI) get(w http.ResponseWriter, req *http.Request, names []string) {
	for _, name := range names {
		switch name {
		case "power":
			on, lost, err := o.front.power(req.Context())
			if lost {
				on, err = o.Chassis.Power(req.Context())
			}
			if err != nil {
				http.Error(w, "power cannot be read", http.StatusInternalServerError)
				return
			}
			v := 0
			if on {
				v = 1
			}
			fmt.Fprintf(w, "power:%d\n", v)
		case "boot":
			o.mu.Lock()
			fmt.Fprintf(w, "boot:%s\n", o.boot)
			o.mu.Unlock()
		default:
			fmt.Fprintf(w, "%s:0\n", name)
		}
	}
}

func (o *OpenIPMI) set(w http.ResponseWriter, req *http.Request, name, value string) {
	var op ipmi.Op
	switch name {
	case "power":
		op = ipmi.OpOff
		if value == "1" {
			op = ipmi.OpOn
		}
	case "reset":
		op = ipmi.OpReset
	case "shutdown":
		op = ipmi.OpSoft
	case "boot":
		if o.Faults.Now().DropBoot {
			return
		}
		device, ok := simDevices[value]
		if !ok {
			http.Error(w, "no such device", http.StatusBadRequest)
			return
		}
		if err := o.Chassis.SetNextBoot(req.Context(), Boot{Device: device, Once: device != ipmi.DeviceNone}); err != nil {
			http.Error(w, "override cannot be set", http.StatusInternalServerError)
			return
		}
		o.mu.Lock()
		o.boot = value
		o.mu.Unlock()
		return
	default: // identify
		return
	}
	if err := o.front.setPower(req.Context(), op); err != nil {
		http.Error(w, "busy", http.StatusServiceUnavailable)
	}
}
