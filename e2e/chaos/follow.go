package chaos

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const followEvery = 5 * time.Millisecond

// followed is one file of JSON lines.
type followed struct {
	file *os.File
	name string
	read int64 // bytes of whole lines that were taken
}

// follow collects lines until ctx ends. Every file stays open: one that has got another name may still grow, by whoever was
// about to write.
func (b *broker) follow(ctx context.Context) {
	var files []*followed
	defer func() {
		for _, f := range files {
			_ = f.file.Close()
		}
	}()
	for {
		files = b.found(files)
		for _, f := range files { // the oldest first
			b.read(f)
		}
		if !pause(ctx, followEvery) {
			return
		}
	}
}

// found adds files that are new, told by what they are and not by their names.
func (b *broker) found(files []*followed) []*followed {
	pattern := "events.jsonl*"
	if b.kind == ServiceBus {
		pattern = "journal"
	}
	names, _ := filepath.Glob(filepath.Join(b.dir, pattern))
	slices.SortFunc(names, func(x, y string) int { // the one without a number is the newest
		if len(x) != len(y) {
			return len(y) - len(x)
		}
		return strings.Compare(x, y)
	})
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		is, err := f.Stat()
		known := err != nil || slices.ContainsFunc(files, func(g *followed) bool {
			other, err := g.file.Stat()
			return err == nil && os.SameFile(is, other)
		})
		if known {
			_ = f.Close()
			continue
		}
		files = append(files, &followed{file: f, name: fmt.Sprint("file-", len(files))})
	}
	return files
}

// read takes the whole lines that a file has more than before. What is not a line yet, and blanks at the end, a publisher may take
// back: it had no room for them, or tried whether there is some.
func (b *broker) read(f *followed) {
	at, parse := time.Now(), parseLine
	if b.kind == ServiceBus {
		parse = parseStored
	}
	text, err := io.ReadAll(io.NewSectionReader(f.file, f.read, 1<<62))
	if err != nil {
		return
	}
	for passed := int64(0); ; {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return
		}
		text = rest
		passed += int64(len(line)) + 1
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if a, is := parse(line); is {
			a.Position, a.At = fmt.Sprintf("%s:%d", f.name, f.read+passed-int64(len(line))-1), at
			b.collected.add(a)
		}
		f.read += passed
		passed = 0
	}
}

// parseLine reads a line; false: it was torn.
func parseLine(line []byte) (a Arrival, is bool) {
	var l struct {
		ID            string          `json:"id"`
		Key           string          `json:"key"`
		Epoch         json.Number     `json:"epoch"`
		Payload       json.RawMessage `json:"payload"`
		PayloadText   string          `json:"payload_text"`
		PayloadBase64 string          `json:"payload_base64"`
	}
	if json.Unmarshal(line, &l) != nil || l.ID == "" {
		return a, false
	}
	payload := []byte(l.Payload)
	switch {
	case l.PayloadText != "":
		payload = []byte(l.PayloadText)
	case l.PayloadBase64 != "":
		payload, _ = base64.StdEncoding.DecodeString(l.PayloadBase64)
	}
	return Arrival{ID: l.ID, Key: l.Key, Epoch: l.Epoch.String(), Digest: digest(payload)}, true
}
