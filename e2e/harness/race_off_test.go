//go:build !race

package harness

const memoryFactor = 1
