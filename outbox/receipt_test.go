package outbox_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/onwardhq/onward/outbox"
)

const id = "0197b0c4-6f5e-7c3a-9d1e-2f8a4b6c8d0e"

var largest = outbox.Receipt{ID: outbox.IDFrom("a", "b"), Partition: math.MaxInt16, Seq: math.MaxInt64, Tx: math.MaxUint64}

func TestReceiptFitsAHeader(t *testing.T) {
	t.Parallel()
	for _, r := range []outbox.Receipt{{}, {ID: outbox.NewID(), Partition: 18, Seq: 4711, Tx: 90210}, largest} {
		text := r.String()
		if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c >= 0x7f }) || len(text) > 83 {
			t.Errorf("%q cannot be a header", text)
		}
		if got, err := outbox.ParseReceipt(text); err != nil || got != r {
			t.Errorf("%s became %v, %v", text, got, err)
		}
	}
	if n := len(largest.String()); n != 83 {
		t.Errorf("the largest receipt has %d bytes: the limit of ParseReceipt is 83", n)
	}
}

func TestWhatIsNoReceiptIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", id, id + ".1.2", id + ".1.2.3.4", id + "...", id + ".1.2.", id + ".x.2.3", id + ".1.x.3", id + ".1.2.x", "x.1.2.3", ".1.2.3",
		id + ".-1.2.3", id + ".1.-2.3", id + ".1.2.-3", id + ".+1.2.3", id + ".01.2.3", id + ".1.02.3", id + ".1.2.03", id + ".1_0.2.3",
		id + ".32768.2.3", id + ".1.9223372036854775808.3", id + ".1.2.18446744073709551616",
		strings.ToUpper(id) + ".1.2.3", " " + id + ".1.2.3", id + ".1.2.3\n", id + ".1.2." + strings.Repeat("0", 100),
	} {
		r, err := outbox.ParseReceipt(s)
		if r != (outbox.Receipt{}) || !errors.Is(err, outbox.ErrFieldInvalid) || !strings.Contains(err.Error(), "id.partition.seq.transaction") || outbox.Hint(err) == "" {
			t.Errorf("%.100q: %v, %v, hint %q", s, r, err, outbox.Hint(err))
		}
	}
}

func TestReceiptAsText(t *testing.T) {
	t.Parallel()
	type document struct{ Receipt outbox.Receipt }
	want := document{largest}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got document
	if err := json.Unmarshal(text, &got); err != nil || got != want {
		t.Errorf("%s became %v, %v", text, got, err)
	}
	if err := got.Receipt.UnmarshalText([]byte("x")); !errors.Is(err, outbox.ErrFieldInvalid) || got != want {
		t.Errorf("%v, %v: want an error and the receipt as it was", got, err)
	}
}

func FuzzParseReceipt(f *testing.F) {
	for _, s := range []string{"", id + ".18.4711.90210", largest.String(), id + ".1.2.+3", id + ".1.2.03", strings.ToUpper(id) + ".1.2.3", "....", id + ".32768.0.0", "\x00\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := outbox.ParseReceipt(s)
		switch {
		case err != nil && (!errors.Is(err, outbox.ErrFieldInvalid) || r != outbox.Receipt{}):
			t.Errorf("%q: %v, %v", s, r, err)
		case err == nil && r.String() != s:
			t.Errorf("%q became %s: one receipt has two texts", s, r)
		}
	})
}
