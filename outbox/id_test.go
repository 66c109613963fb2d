package outbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onwardhq/onward/outbox"
)

func milliseconds(id outbox.ID) (n int64) {
	for _, b := range id[:6] {
		n = n<<8 | int64(b)
	}
	return n
}

func TestNewIDIsAUUIDv7OfThisMoment(t *testing.T) {
	t.Parallel()
	// Other tests of this process draw ids as well, which may be ahead of the clock by a tick for each.
	before := time.Now().UnixMilli()
	for range 1000 {
		id := outbox.NewID()
		if id[6]>>4 != 7 || id[8]>>6 != 2 {
			t.Fatalf("%s is no UUID of version 7", id)
		}
		if ms := milliseconds(id); ms < before || ms > time.Now().UnixMilli()+1000 {
			t.Fatalf("%s is of %d, not of this moment, %d", id, ms, before)
		}
	}
}

func TestNewIDsOfAProcessGrowAndNeverMeet(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 5000
	all := make([][]outbox.ID, writers)
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for range each {
				all[w] = append(all[w], outbox.NewID())
			}
		})
	}
	group.Wait()
	seen := make(map[outbox.ID]bool, writers*each)
	for _, ids := range all {
		for i, id := range ids {
			if seen[id] {
				t.Fatalf("%s twice", id)
			}
			seen[id] = true
			if i > 0 && bytes.Compare(ids[i-1][:], id[:]) >= 0 {
				t.Fatalf("%s after %s", id, ids[i-1])
			}
		}
	}
}

// The vectors are Python's: uuid5(uuid5(NAMESPACE_OID, scope), text).
func TestIDFromVectors(t *testing.T) {
	t.Parallel()
	seen := map[outbox.ID]bool{}
	for _, c := range []struct{ scope, text, want string }{
		{"a", "bc", "ab5a3d6d-00e2-5856-aca8-8b8f3b768a48"},
		{"ab", "c", "58cab9ad-06af-57b9-a6d2-d90ed6a0f84a"},
		{"billing/invoice-paid", "2026-0001", "f53ae365-0ca8-57e9-9f2c-05e97f4434f8"},
		{"", "", "0e1ab8dd-36e9-53ca-a20a-df454630b80a"},
		{"ü", "日本", "284847cb-a158-5a4b-82d5-a17aab5bd3b6"},
	} {
		got := outbox.IDFrom(c.scope, c.text)
		if got.String() != c.want || seen[got] {
			t.Errorf("IDFrom(%q, %q) = %s, want %s, once", c.scope, c.text, got, c.want)
		}
		seen[got] = true
	}
}

func TestParseIDTakesTheCanonicalTextInEitherCase(t *testing.T) {
	t.Parallel()
	id := outbox.NewID()
	for _, s := range []string{id.String(), strings.ToUpper(id.String())} {
		if got, err := outbox.ParseID(s); err != nil || got != id {
			t.Errorf("%s: %v, %v", s, got, err)
		}
	}
	good := "0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e"
	for _, s := range []string{
		"", "x", good[:35], good + "0", "{" + good[:34] + "}", strings.ReplaceAll(good, "-", ""), strings.Replace(good, "-", "_", 1),
		"0197b0c46-f5e-7c3a-9d1e-2f8a4b6c8d0e", "g" + good[1:], " " + good[1:], strings.Repeat("0", 1000),
	} {
		id, err := outbox.ParseID(s)
		if !id.IsZero() || !errors.Is(err, outbox.ErrIDInvalid) || !strings.Contains(outbox.Hint(err), good) || len(err.Error()) > 200 {
			t.Errorf("%.60q: %v, %v", s, id, err)
		}
	}
}

func TestIDAsText(t *testing.T) {
	t.Parallel()
	type document struct{ ID outbox.ID }
	for _, want := range []document{{}, {outbox.NewID()}} {
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got := document{outbox.NewID()}
		if err := json.Unmarshal(text, &got); err != nil || got != want {
			t.Errorf("%s became %v, %v", text, got, err)
		}
	}
	kept := outbox.NewID()
	got := kept
	if err := got.UnmarshalText([]byte("x")); !errors.Is(err, outbox.ErrIDInvalid) || got != kept {
		t.Errorf("%v, %v: want an error and the id as it was", got, err)
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"", "0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e", "0197B0C4-6F5E-7C3A-9D1E-2F8A4B6C8D0E", "00000000-0000-0000-0000-000000000000", "0197b0c46f5e-7c3a-9d1e-2f8a4b6c8d0e---"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := outbox.ParseID(s)
		switch {
		case err != nil && (!errors.Is(err, outbox.ErrIDInvalid) || !id.IsZero()):
			t.Errorf("%q: %v, %v", s, id, err)
		case err == nil && id.String() != strings.ToLower(s):
			t.Errorf("%q became %s", s, id)
		}
	})
}

// Different scopes and texts have different ids, however the two are cut.
func FuzzIDFrom(f *testing.F) {
	f.Add("a", "bc", "ab", "c")
	f.Add("", "x", "x", "")
	f.Add("ü", "\xff", "ü\xff", "")
	f.Add("same", "text", "same", "text")
	f.Fuzz(func(t *testing.T, scope, text, otherScope, otherText string) {
		one, other := outbox.IDFrom(scope, text), outbox.IDFrom(otherScope, otherText)
		if same := scope == otherScope && text == otherText; (one == other) != same {
			t.Errorf("(%q, %q) is %s, (%q, %q) is %s", scope, text, one, otherScope, otherText, other)
		}
		if one[6]>>4 != 5 || one[8]>>6 != 2 {
			t.Errorf("%s is no UUID of version 5", one)
		}
	})
}
