package cli

import (
	"strings"
	"testing"
)

// A row that is wider than the terminal is continued below, further in, and no column is torn.
func TestTablesFoldInNarrowTerminals(t *testing.T) {
	t.Parallel()
	table := func() *table {
		t := newTable("ID", "TOPIC", "BYTES", "STATE")
		t.add(text("0197b0c4"), text("orders"), number("1,234"), text("published"))
		t.add(text("0197b0c5"), text("ünïcode"), number("5"), text("dead"))
		return t
	}
	const wide = "ID        TOPIC    BYTES  STATE\n0197b0c4  orders   1,234  published\n0197b0c5  ünïcode      5  dead\n"
	for columns, want := range map[int]string{
		0:  wide,
		80: wide,
		35: wide,
		34: "ID        TOPIC    BYTES\n    STATE\n0197b0c4  orders   1,234\n    published\n0197b0c5  ünïcode      5\n    dead\n",
		20: "ID        TOPIC\n    BYTES  STATE\n0197b0c4  orders\n    1,234  published\n0197b0c5  ünïcode\n        5  dead\n",
		3:  "ID\n    TOPIC\n    BYTES\n    STATE\n0197b0c4\n    orders\n    1,234\n    published\n0197b0c5\n    ünïcode\n        5\n    dead\n",
	} {
		var got strings.Builder
		if err := table().write(&got, func(s string, _ style) string { return s }, columns); err != nil || got.String() != want {
			t.Errorf("%d columns: %v\n%s\nwant:\n%s", columns, err, got.String(), want)
		}
	}
}
