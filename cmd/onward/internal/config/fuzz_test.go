package config

import (
	"bytes"
	"math/big"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// A fault has its place in the file. A file without faults says what its settings say one by one with --set.
func FuzzReadYAML(f *testing.F) {
	for _, text := range []string{
		"relay:\n  lease: 15s\nsinks:\n  - name: a\n    url: jsonl:\n", "a: &x {b: *x}\n? [1]\n: 2", "relay: &r {lease: 1s}\nsinks: [*r]",
		"sinks:\n - topics: [a, \"b,c\", \"d\\0e\"]\n   exclude: a, b\n", "topics: [{match: '>'}, {}, {match: ~}]", "--- {}\n--- {}", "relay: {lease: 1s, lease: 2s}",
		"database: {schema: \"x\\ny\"}", "\xff", "sinks: {}", "relay: !!str x", "<<: {relay: {lease: 1s}}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, faults := readYAML("conf/x.yaml", text)
		for _, fault := range faults {
			if !strings.HasPrefix(fault.Place, "x.yaml") || fault.line > bytes.Count(text, []byte("\n"))+bytes.Count(text, []byte("\r"))+1 || fault.Detail == "" {
				t.Errorf("%q: %+v", text, fault)
			}
		}
		file := &Config{places: make(map[string]place)}
		wrong := file.apply(entries)
		_ = file.check(NeedNothing, wrong) // must not panic
		if len(faults)+len(wrong) > 0 {
			return
		}
		var pairs []string
		for _, e := range entries {
			if e.element && !slices.ContainsFunc(entries, func(o entry) bool { return !o.element && strings.HasPrefix(join(o.steps), join(e.steps)+".") }) {
				return // an entry with nothing in it
			}
			if !e.element {
				pairs = append(pairs, join(e.steps)+"="+e.text)
			}
		}
		said, faults := readFlags(pairs)
		flags := &Config{places: make(map[string]place)}
		if wrong := flags.apply(said); len(faults)+len(wrong) > 0 {
			t.Fatalf("%q: %v %v", pairs, faults, wrong)
		}
		file.places, flags.places = nil, nil
		if !reflect.DeepEqual(file, flags) {
			t.Errorf("%q is\n%+v\nsaid by %q it is\n%+v", text, file, pairs, flags)
		}
	})
}

// Days are as long as the same number of hours: what Go's own durations cannot hold is refused.
func FuzzDuration(f *testing.F) {
	for _, s := range []string{"0", "20ms", "1h30m", "30d", "-2d", "1.5d", "106751d", "106752d", "213504d", "2147483647d", "+1d", "1d1h", "9223372036854775807ns"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err != nil {
			return
		}
		if d < 0 {
			t.Fatalf("%q is %s", s, d)
		}
		if again, err := parseDuration(d.String()); err != nil || again != d {
			t.Errorf("%q is %s, which is %s, %v", s, d, again, err)
		}
		if days, ok := strings.CutSuffix(s, "d"); ok {
			n, ok := new(big.Int).SetString(days, 10)
			if !ok || n.Mul(n, big.NewInt(int64(24*time.Hour))).Cmp(big.NewInt(int64(d))) != 0 {
				t.Errorf("%q is %s", s, d)
			}
		}
	})
}

func FuzzByteSize(f *testing.F) {
	for _, s := range []string{"16MiB", "512KiB", "1MB", "4096", "0", "1B", "8589934592GiB", "9223372036854775807", "-1", "1 GiB", "+1KB", "1.5MiB", "KiB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseByteSize(s)
		if err != nil {
			return
		}
		if again, err := ParseByteSize(b.String()); err != nil || again != b || b < 0 {
			t.Errorf("%q is %s, which is %d, %v", s, b, again, err)
		}
		digits, unit := strings.TrimRight(s, "KMGiB"), int64(1)
		switch suffix := s[len(digits):]; {
		case strings.HasSuffix(suffix, "iB"):
			unit = 1 << (10 * (1 + strings.Index("KMG", suffix[:1])))
		case len(suffix) == 2:
			unit = []int64{1e3, 1e6, 1e9}[strings.Index("KMG", suffix[:1])]
		}
		n, ok := new(big.Int).SetString(strings.TrimSpace(digits), 10)
		if !ok || n.Mul(n, big.NewInt(unit)).Cmp(big.NewInt(int64(b))) != 0 {
			t.Errorf("%q is %d", s, b)
		}
	})
}

// No character of a password is shown, and all the rest of the address is.
func FuzzMaskURL(f *testing.F) {
	f.Add("postgres", "app", "s3cret", "db:5432", "/orders", "password", "other")
	f.Add("nats", "", "token", "n1:4222", "", "sslmode", "require")
	f.Add("nats", "u", "p@ss:w/ord", "n1", "", "sslpassword", "a&b")
	f.Fuzz(func(t *testing.T, scheme, user, password, host, path, name, value string) {
		if len(password) < 4 || strings.Contains("password sslpassword postgres nats ***", password) {
			return
		}
		u := url.URL{Scheme: scheme, User: url.UserPassword(user, password), Host: host, Path: path, RawQuery: url.Values{"password": {password}, name: {value}}.Encode()}
		text := u.String()
		if parsed, err := url.Parse(text); err != nil || parsed.Host == "" || strings.Contains(scheme+user+host+path+name+value, password) {
			return // no address, or one that says the word anyway
		}
		shown := MaskURL(text)
		for _, secret := range []string{password, url.QueryEscape(password), url.PathEscape(password), url.UserPassword("", password).String()[1:]} {
			if strings.Contains(shown, secret) {
				t.Errorf("%q is shown as %q", text, shown)
			}
		}
	})
}
