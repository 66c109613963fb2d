//go:build race

package harness

// The race detector multiplies the memory and the time that a process needs.
const raceFactor = 8
