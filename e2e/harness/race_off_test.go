//go:build !race

package harness

const raceFactor = 1
