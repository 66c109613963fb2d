//go:build race

package harness

// The race detector multiplies what a process needs.
const memoryFactor = 8
