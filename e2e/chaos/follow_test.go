package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The collector of JSON lines has each whole line once, also of a file that gets another name and still grows, and takes nothing
// that a publisher takes back.
func TestTheCollectorOfJSONLinesHasEachWholeLineOnce(t *testing.T) {
	t.Parallel()
	b := &broker{dir: t.TempDir(), collected: collected{distinct: map[string]bool{}}}
	path := filepath.Join(b.dir, "events.jsonl")
	var files []*followed
	t.Cleanup(func() {
		for _, f := range files {
			_ = f.file.Close()
		}
	})
	open := func() *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	write := func(f *os.File, text string) {
		t.Helper()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	line := func(id string) string {
		return fmt.Sprintf("{\"id\":%q,\"key\":\"k\",\"epoch\":3,\"payload_base64\":\"aGVsbG8=\"}\n", id)
	}
	has := func(want ...string) {
		t.Helper()
		files = b.found(files)
		for _, f := range files {
			b.read(f)
		}
		var got []string
		for _, a := range b.collected.arrivals {
			got = append(got, a.ID)
			if a.Key != "k" || a.Epoch != "3" || a.Digest != digest([]byte("hello")) {
				t.Errorf("got %+v", a)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	first := open()
	write(first, line("a")+line("b")+`{"id":"c"`) // for the rest there was no room
	has("a", "b")
	size := int64(len(line("a") + line("b")))
	if err := first.Truncate(size); err != nil {
		t.Fatal(err)
	}
	write(first, "            \n") // a check that looks whether there is room
	has("a", "b")
	if err := first.Truncate(size); err != nil {
		t.Fatal(err)
	}
	write(first, line("d")+`{"id":"torn by a kill`+"\n"+line("e"))
	has("a", "b", "d", "e")
	if _, err := b.rename(); err != nil {
		t.Fatal(err)
	}
	second := open()
	write(first, line("f")) // by who was about to write
	write(second, line("g"))
	has("a", "b", "d", "e", "f", "g")
	write(second, "\n"+line("h"))
	has("a", "b", "d", "e", "f", "g", "h")
}
