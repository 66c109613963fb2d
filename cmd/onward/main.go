// Command onward runs relays and looks after outboxes; see `onward help`.
package main

import "github.com/onwardhq/onward/cmd/onward/cli"

func main() { cli.Main() }
