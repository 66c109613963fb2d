package inflight_test

import (
	"os"
	"testing"

	"github.com/onwardhq/onward/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }
