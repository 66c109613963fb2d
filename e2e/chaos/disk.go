package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// disk is a folder that may be filled up: a file system of its own, in memory, where we may mount one.
type disk struct {
	dir     string
	mounted bool
	refused string // why nothing was mounted
}

// newDisk makes one of so many bytes below a folder. Where it cannot be mounted, it is a folder like any other.
func newDisk(dir string, bytes int64) (*disk, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d := &disk{dir: dir}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("size=%d,mode=0755", bytes)); err != nil {
		d.refused = fmt.Sprintf("a small file system cannot be mounted here: %v", err)
		return d, nil
	}
	d.mounted = true
	return d, nil
}

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// fill leaves so many bytes free, or fewer: others write meanwhile.
func (d *disk) fill(leave int64) error {
	if !d.mounted {
		return errors.New(d.refused)
	}
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	step := int64(16 << 20)
	for size := int64(0); step >= 4<<10; {
		var s syscall.Statfs_t
		if err := syscall.Statfs(d.dir, &s); err != nil {
			return err
		}
		free := int64(s.Bavail)*s.Bsize - leave
		if free <= 0 {
			return nil
		}
		more := min(step, free)
		err := syscall.Fallocate(int(f.Fd()), 0, size, more)
		switch {
		case err == nil:
			size += more
		case errors.Is(err, syscall.ENOSPC): // less than that by now
			step /= 4
		case !errors.Is(err, syscall.EINTR):
			return err
		}
	}
	return nil
}

// empty takes the ballast away.
func (d *disk) empty() error {
	if err := os.Remove(d.ballast()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (d *disk) close() {
	if d.mounted {
		_ = syscall.Unmount(d.dir, syscall.MNT_DETACH)
	}
}
