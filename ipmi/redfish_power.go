package ipmi

import (
	"context"
	"net/http"
	"slices"

	"github.com/stmcginnis/gofish/redfish"
)

// read GETs the system.
func (c *rfConn) read(ctx context.Context, path string) (rfAnswer, error) {
	a, err := c.do(ctx, http.MethodGet, path, nil, nil)
	switch {
	case err != nil:
		return a, err
	case !a.ok():
		return a, a.refusal()
	case a.body == nil: // a login page, or a web server whose Redfish service is not up yet
		return a, failf(ErrUnreachable, "HTTP %d without a resource", a.status)
	}
	return a, nil
}

func (c *rfConn) power(ctx context.Context) (Power, error) {
	a, err := c.read(ctx, c.system)
	if err != nil {
		return Unknown, err
	}
	return c.powerOf(a.body), nil
}

// powerOf reads the power state of a ComputerSystem. On the way up or down is Unknown.
func (c *rfConn) powerOf(system object) Power {
	switch redfish.PowerState(system.str("PowerState")) {
	case redfish.OnPowerState:
		return On
	case redfish.OffPowerState:
		return Off
	case redfish.PoweringOnPowerState, redfish.PoweringOffPowerState, redfish.PausedPowerState:
		return Unknown
	}
	c.log.Warn("BMC does not tell the power state", "bmc", c.t)
	return Unknown
}

// resetTypes is the reset types that do op, best first. GracefulRestart is not among them: it hangs with the operating
// system on one machine and is a hard reset on another. Nothing graceful turns into ForceOff.
func resetTypes(op Op, now Power) []redfish.ResetType {
	button := redfish.PushPowerButtonResetType
	switch op {
	case OpOn:
		types := []redfish.ResetType{redfish.OnResetType, redfish.ForceOnResetType}
		if now == Off { // pressed on a host that is on it would shut down
			types = append(types, button)
		}
		return types
	case OpOff:
		return []redfish.ResetType{redfish.ForceOffResetType}
	case OpSoft:
		types := []redfish.ResetType{redfish.GracefulShutdownResetType}
		if now == On {
			types = append(types, button)
		}
		return types
	case OpCycle:
		return []redfish.ResetType{redfish.PowerCycleResetType, redfish.ForceRestartResetType}
	case OpReset:
		return []redfish.ResetType{redfish.ForceRestartResetType, redfish.PowerCycleResetType}
	}
	return nil
}

func (c *rfConn) command(ctx context.Context, op Op, now Power) error {
	system, err := c.read(ctx, c.system)
	if err != nil {
		return unsent(err)
	}
	action := system.body.obj("Actions").obj("#ComputerSystem.Reset")
	target := action.str("target")
	if target == "" {
		target = c.system + "/Actions/ComputerSystem.Reset"
	}
	allowed, told := action.strs("ResetType@Redfish.AllowableValues")
	if info := action.str("@Redfish.ActionInfo"); !told && info != "" {
		if allowed, told, err = c.actionInfo(ctx, info); err != nil {
			return unsent(err)
		}
	}
	for _, typ := range resetTypes(op, now) {
		if told && !slices.Contains(allowed, string(typ)) {
			continue
		}
		a, err := c.post(ctx, target, map[string]string{"ResetType": string(typ)}, system)
		switch {
		case err != nil:
			return err
		case a.ok():
			return nil
		case a.status == http.StatusBadRequest && !told && a.says("ActionParameterNotSupported", "ActionParameterValueNotInList", "ActionParameterValueFormatError",
			"ActionParameterUnknown", "PropertyValueNotInList", "ActionNotSupported"):
			continue // it does not say what it takes: it was a guess
		case a.status == http.StatusBadRequest && a.says("OperationNotAllowed", "ActionParameterValueConflict", "ResourceInUse"):
			return failf(ErrBusy, "HTTP %d: not in this state", a.status)
		}
		return a.refusal()
	}
	if op == OpCycle || op == OpReset {
		return errRestartUnsupported
	}
	return failf(ErrUnsupported, "no reset type of this BMC does it")
}

// actionInfo reads the allowed reset types where they are not told inline.
func (c *rfConn) actionInfo(ctx context.Context, path string) (allowed []string, told bool, err error) {
	a, err := c.do(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return nil, false, err
	}
	for _, p := range a.body.objs("Parameters") {
		if p.str("Name") == "ResetType" {
			allowed, told = p.strs("AllowableValues")
		}
	}
	return allowed, told, nil
}

// post sends an action, with the ETag of the resource only where the service insists.
func (c *rfConn) post(ctx context.Context, path string, body any, of rfAnswer) (rfAnswer, error) {
	a, err := c.do(ctx, http.MethodPost, path, body, nil)
	if err == nil && a.wantsETag() {
		return c.do(ctx, http.MethodPost, path, body, ifMatch(of))
	}
	return a, err
}

// unsent marks the error of a request that came before the one that counts.
func unsent(err error) error {
	if f, ok := err.(*failure); ok {
		f.sent = false
	}
	return err
}
