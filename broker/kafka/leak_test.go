package kafka

import (
	"os"
	"testing"

	"github.com/onwardhq/onward/leaktest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(mortalEnv); text != "" {
		beMortal(text)
	}
	os.Exit(leaktest.Main(unclustered{m}))
}

// unclustered are the tests, and then the end of what they share.
type unclustered struct{ tests *testing.M }

func (u unclustered) Run() int {
	code := u.tests.Run()
	endCluster()
	return code
}
