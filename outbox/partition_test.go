package outbox_test

import (
	"testing"

	"github.com/onwardhq/onward/outbox"
)

func TestPartitionOfVectors(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{"a": 18, `a\b`: 16, "ünï": 41, "日本": 12} {
		if got := outbox.PartitionOf(key, outbox.ID{}, 64); got != want {
			t.Errorf("%s: %d, want %d", key, got, want)
		}
	}
	id := outbox.IDFrom("test", "1")
	if got, want := outbox.PartitionOf("", id, 16384), outbox.PartitionOf(id.String(), outbox.ID{}, 16384); got != want {
		t.Errorf("without a key: %d, want that of the id's text, %d", got, want)
	}
}
