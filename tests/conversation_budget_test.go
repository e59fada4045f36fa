package tests

import (
	"testing"

	"github.com/cockroachdb/datadriven"

	"offload"
)

// scanBudgets reads what an engine is opened with about memory:
//
//	[slab=BYTES] [policy=keep | wait | refuse] [device-budget=BYTES] [retain]
func scanBudgets(t *testing.T, td *datadriven.TestData, o *offload.Options) {
	td.MaybeScanArgs(t, "slab", &o.SlabBytes)
	td.MaybeScanArgs(t, "device-budget", &o.DeviceBudget)
	o.RetainHost = td.HasArg("retain")
	policy := "keep"
	td.MaybeScanArgs(t, "policy", &policy)
	switch policy {
	case "keep":
		o.HostPolicy = offload.KeepOnDevice
	case "wait":
		o.HostPolicy = offload.WaitForHost
	case "refuse":
		o.HostPolicy = offload.RefuseOffload
	default:
		t.Fatalf("%s: no policy %q", td.Pos, policy)
	}
}
