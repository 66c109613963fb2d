package chaos

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Where a disk of our own can be had it can be filled and emptied; elsewhere it is a folder, and says why it cannot be filled.
func TestADiskIsFullUntilItIsEmptied(t *testing.T) {
	t.Parallel()
	d, err := newDisk(filepath.Join(t.TempDir(), "disk"), 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	file := filepath.Join(d.dir, "file")
	write := func() error { return os.WriteFile(file, make([]byte, 1<<20), 0o600) }
	if !d.mounted {
		if err := d.fill(0); err == nil || err.Error() != d.refused || d.refused == "" {
			t.Errorf("got %v, want %q", err, d.refused)
		}
		if err := write(); err != nil {
			t.Error(err)
		}
		return
	}
	if err := d.fill(64 << 10); err != nil {
		t.Fatal(err)
	}
	if err := write(); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to a full disk: %v", err)
	}
	if err := d.empty(); err != nil {
		t.Fatal(err)
	}
	if err := write(); err != nil {
		t.Errorf("a write to an emptied disk: %v", err)
	}
}
