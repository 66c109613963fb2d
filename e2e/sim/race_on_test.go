//go:build race

package sim

const raced = true // everything takes ten times as long
