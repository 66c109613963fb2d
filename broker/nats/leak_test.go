package nats

import (
	"os"
	"testing"

	"github.com/onwardhq/onward/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(unwired{m})) }

// unwired are the tests, and then the end of what they share.
type unwired struct{ tests *testing.M }

func (u unwired) Run() int {
	code := u.tests.Run()
	if w := theWire.Load(); w != nil {
		w.nc.Close()
	}
	return code
}
