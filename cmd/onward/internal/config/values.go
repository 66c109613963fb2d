package config

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// ByteSize is a number of bytes, written 16MiB, 512KiB, 1MB or 4096.
type ByteSize int64

// Words are several words in one setting: a list in the file, with commas between them elsewhere.
type Words []string

const wordsEnd = "\x00" // between the words of a list in the file, which may hold commas

var byteUnits = []struct {
	suffix string
	size   int64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"KB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"B", 1},
	{"", 1},
}

// ParseByteSize reads a whole number and a unit.
func ParseByteSize(s string) (ByteSize, error) {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.size {
			break
		}
		return ByteSize(n * u.size), nil
	}
	return 0, fmt.Errorf("%q is not a size: write for example 16MiB, 512KiB or 4096", s)
}

// String writes the largest binary unit that leaves a whole number.
func (b ByteSize) String() string {
	for _, u := range []int{2, 1, 0} {
		if unit := byteUnits[u]; b != 0 && int64(b)%unit.size == 0 {
			return strconv.FormatInt(int64(b)/unit.size, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// parseDuration reads Go's durations, and days.
func parseDuration(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok && err != nil {
		var n int64
		if n, err = strconv.ParseInt(days, 10, 32); err == nil {
			d = time.Duration(n) * 24 * time.Hour
			if n > math.MaxInt64/int64(24*time.Hour) {
				d = -1 // 292 years and more
			}
		}
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration: write for example 20ms, 15s, 10m, 24h or 30d", s)
	}
	return d, nil
}

// set puts a text into a field of Config.
func set(field reflect.Value, text string) error {
	switch field.Interface().(type) {
	case string:
		field.SetString(text)
	case bool:
		if text != "true" && text != "false" {
			return fmt.Errorf("%q is neither true nor false", text)
		}
		field.SetBool(text == "true")
	case int:
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		field.SetInt(n)
	case time.Duration:
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		field.SetInt(int64(d))
	case ByteSize:
		n, err := ParseByteSize(text)
		if err != nil {
			return err
		}
		field.SetInt(int64(n))
	case Words:
		between := ","
		if strings.Contains(text, wordsEnd) {
			between = wordsEnd
		}
		var words Words
		for word := range strings.SplitSeq(text, between) {
			if word = strings.TrimSpace(word); word != "" {
				words = append(words, word)
			}
		}
		field.Set(reflect.ValueOf(words))
	default:
		panic("config: a field of type " + field.Type().String())
	}
	return nil
}
