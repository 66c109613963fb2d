package jsonl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
	"github.com/onwardhq/onward/outbox"
)

// event is a message whose type says which one it is.
func event(n int) broker.Envelope {
	return broker.Envelope{Record: &outbox.Record{Message: outbox.Message{
		ID: outbox.NewID(), Topic: "t", Type: strconv.Itoa(n), ContentType: "text/plain", Payload: []byte("payload " + strconv.Itoa(n)),
	}, Seq: int64(n)}, Epoch: 1}
}

// publish publishes one after the other, and returns the answers.
func publish(t testing.TB, p broker.Publisher, events ...broker.Envelope) []broker.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	results := make([]broker.Result, len(events))
	var answers sync.WaitGroup
	answers.Add(len(events))
	p.Publish(ctx, events, func(i int, r broker.Result) {
		results[i] = r
		answers.Done()
	})
	answers.Wait()
	return results
}

// accepted publishes an event that must be accepted, and returns its position.
func accepted(t testing.TB, p broker.Publisher, n int) string {
	t.Helper()
	r := publish(t, p, event(n))[0]
	if r.Outcome != broker.Accepted {
		t.Fatalf("event %d: %s: %v", n, r.Outcome, r.Err)
	}
	return r.Position
}

// types are the types of a file's lines, one that is no JSON as "torn".
func types(t testing.TB, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		t.Errorf("%s ends within a line", path)
	}
	var all []string
	for line := range bytes.Lines(text) {
		r, err := parse(line)
		if err != nil {
			r.Type = "torn"
		}
		all = append(all, r.Type)
	}
	return all
}

func want(t testing.TB, path string, lines ...string) {
	t.Helper()
	if got := types(t, path); !slices.Equal(got, lines) {
		t.Errorf("%s has %v, want %v", filepath.Base(path), got, lines)
	}
}

// refusing wants a publish and a check to say that the file takes nothing.
func refusing(t *testing.T, p broker.Publisher, cause error, hint string) {
	t.Helper()
	r := publish(t, p, event(0))[0]
	if r.Outcome != broker.Unavailable || r.Code != broker.CodeUnavailable || !errors.Is(r.Err, cause) {
		t.Errorf("publish: %+v, want unavailable because of %v", r, cause)
	}
	err := p.Check(t.Context())
	if outbox.CodeOf(err) != broker.CodeUnavailable || !errors.Is(err, cause) || !strings.Contains(outbox.Hint(err), hint) {
		t.Errorf("check: %v (hint %q), want unavailable because of %v", err, outbox.Hint(err), cause)
	}
}

func TestAFileGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	for n := range 3 {
		p := open(t, Config{Path: path})
		accepted(t, p, n)
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want(t, path, "0", "1", "2")
}

// A crash may leave any part of the last line, and what is there may be somebody else's: nothing of it is removed.
func TestATornLastLineIsEndedAndNothingIsRemoved(t *testing.T) {
	t.Parallel()
	whole, err := rawLine(event(1))
	if err != nil {
		t.Fatal(err)
	}
	second, err := rawLine(event(2))
	if err != nil {
		t.Fatal(err)
	}
	for _, torn := range []int{1, len(second) / 2, len(second) - 1} {
		path := filepath.Join(t.TempDir(), "events.jsonl")
		before := append(bytes.Clone(whole), second[:torn]...)
		if err := os.WriteFile(path, before, 0o600); err != nil {
			t.Fatal(err)
		}
		position := accepted(t, open(t, Config{Path: path}), 3)
		after, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(after, append(before, '\n')) {
			t.Errorf("%q became %q", before, after)
		}
		middle := "torn"
		if torn == len(second)-1 {
			middle = "2"
		}
		want(t, path, "1", middle, "3")
		if position != fmt.Sprint("events.jsonl:", len(before)+1) {
			t.Errorf("position %s behind %d bytes and a line break", position, len(before))
		}
	}
}

// logrotate renames, people remove: the next line is in a file of that name.
func TestAFileThatWasRenamedOrRemovedIsMadeAgain(t *testing.T) {
	t.Parallel()
	for _, sync := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "events.jsonl")
		p := open(t, Config{Path: path, Sync: sync})
		accepted(t, p, 1)
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		accepted(t, p, 2)
		accepted(t, p, 3)
		want(t, path+".1", "1")
		want(t, path, "2", "3")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		accepted(t, p, 4)
		want(t, path, "4")
		if err := os.Truncate(path, 0); err != nil { // copytruncate
			t.Fatal(err)
		}
		if position := accepted(t, p, 5); position != "events.jsonl:0" {
			t.Errorf("position %s in an empty file", position)
		}
		want(t, path, "5")
		if err := os.WriteFile(path+".new", []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil { // another file has the name
			t.Fatal(err)
		}
		accepted(t, p, 6)
		want(t, path, "", "6")
	}
}

func TestAFolderThatIsMissingIsUnavailableAndNotMade(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "mount")
	path := filepath.Join(folder, "events.jsonl")
	p := open(t, Config{Path: path})
	refusing(t, p, fs.ErrNotExist, "make its folder")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := p.Check(t.Context()); err != nil {
		t.Error(err)
	}
	accepted(t, p, 1)
	want(t, path, "1")
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	refusing(t, open(t, Config{Path: path}), errNotRegular, "regular file")
	refusing(t, open(t, Config{Path: t.TempDir()}), errNotRegular, "regular file")
}

func TestAFullFileGetsANumber(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	for _, there := range []string{"events-000007.jsonl", "events-1000001.jsonl.gz", "events-99.jsonl", "events-000009.jsonx", "other-000011.jsonl"} {
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), there), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t, Config{Path: path, RotateBytes: 1024, Sync: true})
	var events []broker.Envelope
	for n := range 40 {
		events = append(events, event(n))
	}
	events[17].Payload = bytes.Repeat([]byte("x"), 5000)
	results := publish(t, p, events...)
	files := numbered(path)[1:]
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "-99.jsonl") })
	if len(files) < 5 || filepath.Base(files[0]) != "events-000008.jsonl" {
		t.Fatalf("files %v", files)
	}
	n := 0
	for i, file := range append(files, path) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name, at := fmt.Sprintf("events-%06d.jsonl", 8+i), 0
		for line := range bytes.Lines(text) {
			if r, err := parse(line); err != nil || r.Type != strconv.Itoa(n) || results[n].Position != fmt.Sprint(name, ":", at) {
				t.Errorf("%s:%d has %q (%v), the answer was %+v", name, at, line, err, results[n])
			}
			n, at = n+1, at+len(line)
		}
		if len(text) > 1024 && n != 18 {
			t.Errorf("%s has %d bytes", name, len(text))
		}
	}
	if n != len(events) {
		t.Errorf("%d lines, want %d", n, len(events))
	}
}

// The system may drop from its memory what it could not write, and say so once: a later success proves nothing.
func TestWhatTheDiskDidNotConfirmIsUncertainAndTheFileIsOpenedAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	p := open(t, Config{Path: path, Sync: true})
	accepted(t, p, 1)
	f := p.target.(*file)
	before := f.f
	f.fsync = func(*os.File) error { return syscall.EIO }
	r := publish(t, p, event(2))[0]
	if r.Outcome != broker.Uncertain || r.Code != broker.CodeUnconfirmed || !errors.Is(r.Err, syscall.EIO) || r.Position != "" {
		t.Errorf("%+v, want uncertain", r)
	}
	f.fsync = (*os.File).Sync
	accepted(t, p, 3)
	if f.f == before {
		t.Error("the file was not opened again")
	}
	want(t, path, "1", "2", "3")
}

func TestOneSyncIsForAllThatCameMeanwhile(t *testing.T) {
	t.Parallel()
	p := open(t, Config{Path: filepath.Join(t.TempDir(), "events.jsonl"), Sync: true})
	syncs, begun, goOn := 0, make(chan struct{}), make(chan struct{})
	f := p.target.(*file)
	f.fsync = func(f *os.File) error {
		if syncs++; syncs == 1 {
			close(begun)
			<-goOn
		}
		return f.Sync()
	}
	var answers sync.WaitGroup
	answers.Add(101)
	early := make(chan broker.Result, 1)
	p.Publish(t.Context(), []broker.Envelope{event(0)}, func(_ int, r broker.Result) { early <- r; answers.Done() })
	<-begun
	for n := range 100 {
		p.Publish(t.Context(), []broker.Envelope{event(n)}, func(int, broker.Result) { answers.Done() })
	}
	if len(early) != 0 {
		t.Error("accepted before the disk had it")
	}
	close(goOn)
	answers.Wait()
	if syncs != 2 {
		t.Errorf("%d syncs, want 2", syncs)
	}
}

// A stuck disk or reader must not pile up what the relay gave up and repeats.
func TestWhatWasGivenUpIsForgotten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	p := open(t, Config{Path: path})
	accepted(t, p, 1)
	release := lockAway(t, path)
	defer release()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		var answers sync.WaitGroup
		answers.Add(10)
		batch := make([]broker.Envelope, 10)
		for n := range batch {
			batch[n] = event(n)
		}
		p.Publish(ctx, batch, func(int, broker.Result) { answers.Done() })
		cancel()
		answers.Wait()
	}
	brokertest.Until(t, "nothing is kept, and nothing open", func() bool { // an answer comes just before it is counted
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.queue) == 0 && p.open == 0
	})
}

func TestConfigurationsThatCannotBeUsedAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Path: "a", Output: os.Stdout}, {Sync: true}, {RotateBytes: 4096}, {Path: "a", RotateBytes: 1023}, {Path: "a", RotateBytes: -1}, {Path: "a\x00"},
	} {
		if _, err := NewPublisher(c); !errors.Is(err, outbox.ErrConfigInvalid) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := (Config{Sync: true, RotateBytes: 7}).Validate(); strings.Count(err.Error(), ";") != 2 {
		t.Errorf("%v, want three faults at once", err)
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for address, path := range map[string]string{
		"jsonl:": "", "jsonl:/var/log/e.jsonl": "/var/log/e.jsonl", "jsonl:///var/e.jsonl": "/var/e.jsonl", "jsonl:e.jsonl": "e.jsonl",
		"jsonl:a/b%3f.jsonl": "a/b?.jsonl", "jsonl:/a%20b": "/a b", "JSONL:./x": "./x",
	} {
		if c, err := ParseURL(address); err != nil || !reflect.DeepEqual(c, Config{Path: path}) {
			t.Errorf("%s: %+v, %v, want %s", address, c, err, path)
		}
	}
	for _, address := range []string{"", "json:/a", "jsonl://host/a", "jsonl://u@/a", "jsonl:/a?sync=true", "jsonl:/a#b", "jsonl:/a/", "jsonl:a%zz", "jsonl:/a%00", "jsonl:a?"} {
		if _, err := ParseURL(address); !errors.Is(err, outbox.ErrConfigInvalid) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
