package bmctest

import (
	"fmt"
	"strings"
)

// emulation is the commands that set ipmi_sim's BMC up: its sensors, their records, its event log and the machine's FRU.
func (o *OpenIPMI) emulation() (string, error) {
	if o.Board == nil {
		o.Board = NewBoard()
	}
	var b strings.Builder
	b.WriteString("mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nsel_enable 0x20 1000 0x0a\n")
	for i, s := range o.Board.Sensors() {
		n := i + 1
		record, err := sdr(n, s)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "main_sdr_add 0x20%s\n", hexBytes(record))
		reading, states := s.raw()
		if k, analog := ipmiKinds[s.Kind]; analog {
			fmt.Fprintf(&b, "sensor_add 0x20 0 %d %d %d\nsensor_set_value 0x20 0 %d %d 0\n", n, k.sensor, classByLimit, n, reading)
		} else {
			fmt.Fprintf(&b, "sensor_add 0x20 0 %d 8 0x6f\n", n)
		}
		fmt.Fprintf(&b, "sensor_set_event_support 0x20 0 %d enable scanning per-state 000000000000000 000000000000000 000000000000000 000000000000000\n", n)
		for bit := range 8 {
			if states&(1<<bit) != 0 {
				fmt.Fprintf(&b, "sensor_set_bit 0x20 0 %d %d 1 0\n", n, bit)
			}
		}
	}
	for _, e := range o.Board.Events() {
		fmt.Fprintf(&b, "sel_add 0x20 2%s\n", hexBytes(o.Board.sel(0, e)[3:]))
	}
	inventory, err := fru(o.Chassis.Identity())
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "mc_add_fru_data 0x20 0 %d data%s\n", max(len(inventory), 256), hexBytes(inventory))
	b.WriteString("mc_enable 0x20\n")
	return b.String(), nil
}

func hexBytes(data []byte) string {
	var b strings.Builder
	for _, x := range data {
		fmt.Fprintf(&b, " 0x%02x", x)
	}
	return b.String()
}
