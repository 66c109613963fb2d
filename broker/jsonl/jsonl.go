// Package jsonl publishes to a file, or to standard output: one JSON object a message, one line each. Several relays may
// write to one file of one host. docs/brokers/jsonl.md has the fields, and what each error of the system means for a
// message.
package jsonl

import (
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// Config says where messages go. The zero value writes to standard output.
type Config struct {
	// Path is the file, made where it is missing; its folder is not. Empty: Output.
	Path string
	// Output is written to where Path is empty: a pipe, a terminal, a file that somebody else looks after. It stays the
	// caller's and open. nil: os.Stdout.
	Output *os.File
	// Sync: a message is accepted once the disk has it (fsync), one call for all that came meanwhile. Otherwise it is
	// accepted once the system has it: it outlives this process, not a crash of the machine. Needs Path.
	Sync bool
	// RotateBytes: a line that would make the file larger than this goes into a new one; the full one gets a number into its
	// name (events.jsonl becomes events-000001.jsonl) and keeps it. A line that is larger has a file for itself. 0: one file
	// that grows; else at least 1024. Needs Path.
	RotateBytes int64
	// Wire says what a line is: in the raw format an object with the fields of docs/names.md, in cloudevents-structured an
	// event in its JSON format, without the message's own headers but traceparent and tracestate. A line has no headers of
	// its own, and a file no topics: cloudevents-binary, templates, and Fields beside a structured event are refused.
	Wire broker.WireConfig
}

// Validate reports all faults at once.
func (c Config) Validate() error {
	var faults []string
	if c.Path != "" && c.Output != nil {
		faults = append(faults, "Path and Output are both set: want one of them")
	}
	if c.Path == "" && c.Sync {
		faults = append(faults, "Sync needs a Path: there is nothing to make safe in a stream")
	}
	if c.Path == "" && c.RotateBytes != 0 {
		faults = append(faults, "RotateBytes needs a Path: a stream cannot be renamed")
	}
	if c.RotateBytes != 0 && c.RotateBytes < 1024 {
		faults = append(faults, fmt.Sprintf("RotateBytes is %d: want 1024 at least, or 0 for one file", c.RotateBytes))
	}
	if strings.ContainsRune(c.Path, 0) {
		faults = append(faults, "Path has a NUL")
	}
	for _, f := range c.Wire.Faults() {
		faults = append(faults, f.Setting+" "+f.Detail)
	}
	if c.Wire.Format == broker.FormatBinary {
		faults = append(faults, fmt.Sprintf("format %s needs headers, and a line has none: %s is for lines", c.Wire.Format, broker.FormatStructured))
	}
	if c.Wire.Format == broker.FormatStructured && len(c.Wire.Fields) > 0 {
		faults = append(faults, "wire_fields are headers of an event, and a line has none")
	}
	if c.Wire.Topic != "" || c.Wire.Key != "" || c.Wire.RoutingKey != "" {
		faults = append(faults, "topic_template, key_template and routing_key_template are for other brokers: a file has no topics")
	}
	if faults == nil {
		return nil
	}
	return &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Op: "jsonl publisher", Detail: strings.Join(faults, "; ")}
}

// ParseURL returns the Config of an address: jsonl: is standard output, jsonl:/var/log/events.jsonl and
// jsonl:///var/log/events.jsonl a file, jsonl:events.jsonl one in the working directory. Bytes that a URL cannot have
// are written as %XX. Settings go beside the address: a query is refused, and so is a host.
func ParseURL(address string) (Config, error) {
	bad := func(detail string) (Config, error) {
		return Config{}, &outbox.Error{
			Code: outbox.ErrConfigInvalid.Code, Op: "jsonl address", Detail: detail,
			Hint: "write jsonl: for standard output, or jsonl:/path/of/a/file.jsonl",
		}
	}
	u, err := url.Parse(address)
	if err != nil {
		return bad("the address is no URL")
	}
	path := u.Path
	if u.Opaque != "" {
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return bad("the path has a % without two digits")
		}
	}
	switch {
	case u.Scheme != "jsonl":
		return bad(fmt.Sprintf("scheme %q is not jsonl", u.Scheme))
	case u.Host != "" || u.User != nil:
		return bad(fmt.Sprintf("%q stands where a host would: a path begins with one slash, or with three", u.Host))
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return bad("a query or fragment is not taken: settings go beside the address")
	case strings.HasSuffix(path, "/"):
		return bad(fmt.Sprintf("%s is a folder", path))
	}
	c := Config{Path: path}
	return c, c.Validate()
}
