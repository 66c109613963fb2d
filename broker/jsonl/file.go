package jsonl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker"
)

// file is a file that grows by whole lines. Several processes may have it open: each writes under a lock on the file,
// and looks first whether it is still the one that has the path's name. One goroutine uses it.
type file struct {
	path   string
	sync   bool
	rotate int64
	stop   <-chan struct{}      // closed: nothing is waited for any more
	fsync  func(*os.File) error // os.File.Sync, but in a test

	f      *os.File // nil: not open
	name   string   // that the file will have for good, part of positions
	end    int64    // size when this process left it; -1: not known
	number int      // of the rotated file that was made, or found, last
	missed int      // bytes that there was no room for; 0: the last write was whole
}

func newFile(c Config, stop <-chan struct{}) *file {
	return &file{path: c.Path, sync: c.Sync, rotate: c.RotateBytes, stop: stop, fsync: (*os.File).Sync}
}

func (f *file) positions() bool { return true }

func (f *file) interrupt() {}

// write writes the lines and answers for each.
func (f *file) write(lines [][]byte) []broker.Result {
	results := make([]broker.Result, 0, len(lines))
	for len(results) < len(lines) {
		rest := lines[len(results):]
		name, at, whole, err := f.append(rest)
		r := broker.Result{Outcome: broker.Accepted}
		if whole > 0 && f.sync {
			if failed := f.fsync(f.f); failed != nil {
				r = unconfirmed(fmt.Errorf("the lines were written, and the disk did not say that it has them: %w", failed))
				f.forget() // what the system keeps of it in memory is not to be trusted any more
			}
		}
		for _, line := range rest[:whole] {
			if r.Outcome == broker.Accepted {
				r.Position = name + ":" + strconv.FormatInt(at, 10)
			}
			results = append(results, r)
			at += int64(len(line))
		}
		if err != nil {
			for len(results) < len(lines) {
				results = append(results, failure(err))
				err = without(err)
			}
		}
	}
	return results
}

// append writes as many lines as belong into the file that is there now, by one call, and returns how many of them are
// whole in it, and where the first one begins. An error is about the first of the others.
func (f *file) append(lines [][]byte) (name string, at int64, whole int, err error) {
	size, err := f.acquire()
	if err != nil {
		return "", 0, 0, err
	}
	for f.rotate > 0 && size > 0 && size+int64(len(lines[0])) > f.rotate {
		if err := f.turn(); err != nil {
			f.release()
			return "", 0, 0, err
		}
		if size, err = f.acquire(); err != nil {
			return "", 0, 0, err
		}
	}
	defer f.release()
	var text []byte
	for n, line := range lines {
		if n > 0 && f.rotate > 0 && size+int64(len(text)+len(line)) > f.rotate {
			break
		}
		text = append(text, line...)
	}
	n, err := f.f.Write(text)
	if n == len(text) {
		f.end, f.missed = size+int64(n), 0
		return f.name, size, countLines(lines, n), nil
	}
	whole, err = f.cut(lines, size, n, err)
	return f.name, size, whole, err
}

// cut removes the torn line behind a write that was not whole, of which n bytes are in the file.
func (f *file) cut(lines [][]byte, size int64, n int, cause error) (whole int, err error) {
	whole = countLines(lines, n)
	keep := 0
	for _, line := range lines[:whole] {
		keep += len(line)
	}
	f.missed, f.end = len(lines[whole]), size+int64(keep)
	if keep == n {
		return whole, cause
	}
	info, err := f.f.Stat()
	if err == nil && info.Size() == size+int64(n) { // otherwise somebody wrote behind it without asking for the lock
		err = f.f.Truncate(f.end)
	}
	if err == nil && info.Size() == size+int64(n) {
		return whole, cause
	}
	f.end = -1                         // the next write ends the torn line
	if keep+len(lines[whole])-1 == n { // all but its line break, which it gets then
		return whole, &tornError{cause}
	}
	return whole, cause
}

// countLines is how many of the lines are whole in their first n bytes.
func countLines(lines [][]byte, n int) int {
	for i, line := range lines {
		if n -= len(line); n < 0 {
			return i
		}
	}
	return len(lines)
}

// acquire locks the file that has the path's name now, ends a torn last line, and returns its size.
func (f *file) acquire() (size int64, err error) {
	for {
		if err := f.open(); err != nil {
			return 0, err
		}
		if err := f.lock(); err != nil {
			return 0, err
		}
		current, err := f.current()
		if err != nil {
			f.release()
			return 0, err
		}
		if current {
			break
		}
		f.forget() // renamed or removed by somebody, for example by logrotate
	}
	size, err = f.mend()
	if err != nil {
		f.release()
	}
	return size, err
}

// open opens the file, or makes it.
func (f *file) open() error {
	if f.f != nil {
		return nil
	}
	if info, err := os.Stat(f.path); err == nil && !info.Mode().IsRegular() {
		return &fs.PathError{Op: "open", Path: f.path, Err: errNotRegular}
	}
	opened, err := os.OpenFile(f.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|openFlags, 0o640)
	if err != nil {
		return err
	}
	f.f, f.end, f.name = opened, -1, filepath.Base(f.path)
	if err = f.keepEntry(); err == nil && f.rotate > 0 {
		err = f.nameNext()
	}
	if err != nil {
		f.forget()
	}
	return err
}

// errNotRegular: a folder, a pipe or a device is in the file's place.
var errNotRegular = errors.New("not a regular file")

// lock waits for the lock until the publisher stops.
func (f *file) lock() error {
	for wait := 50 * time.Microsecond; ; wait = min(2*wait, 5*time.Millisecond) {
		locked, err := tryLock(f.f)
		if err != nil {
			f.forget()
			return &fs.PathError{Op: "lock", Path: f.path, Err: err}
		}
		if locked {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-f.stop:
			return context.Canceled
		}
	}
}

func (f *file) release() {
	if f.f != nil {
		unlock(f.f)
	}
}

// forget closes the file; the next write opens what has the name then.
func (f *file) forget() {
	if f.f != nil {
		_ = f.f.Close() // what was to be kept was synced before
		f.f = nil
	}
}

// current reports whether the open file still has the path's name.
func (f *file) current() (bool, error) {
	named, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	opened, err := f.f.Stat()
	return err == nil && os.SameFile(named, opened), err
}

// mend ends a last line that a crash has torn, and returns the file's size. Nothing is removed: the line may be somebody
// else's, and one of ours was not accepted, so that it comes again.
func (f *file) mend() (size int64, err error) {
	info, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	size = info.Size()
	if size == f.end || size == 0 {
		return size, nil
	}
	var last [1]byte
	if _, err := f.f.ReadAt(last[:], size-1); err != nil {
		return 0, err
	}
	if last[0] == '\n' {
		return size, nil
	}
	n, err := f.f.Write([]byte{'\n'})
	return size + int64(n), err
}

// turn gives the full file its number, and closes it. The caller has the lock.
func (f *file) turn() error {
	if err := f.nameNext(); err != nil {
		return err
	}
	if err := os.Rename(f.path, filepath.Join(filepath.Dir(f.path), f.name)); err != nil {
		return err
	}
	f.forget()
	return nil
}

// nameNext finds the name for the file when it is full: one more than the highest number there is.
func (f *file) nameNext() error {
	folder, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	names, err := folder.Readdirnames(-1)
	if err != nil {
		return err
	}
	extension := filepath.Ext(f.path)
	stem := strings.TrimSuffix(filepath.Base(f.path), extension)
	for _, name := range names {
		if digits, ok := strings.CutPrefix(strings.TrimSuffix(name, extension), stem+"-"); ok && len(digits) >= 6 {
			if n, err := strconv.Atoi(digits); err == nil {
				f.number = max(f.number, n)
			}
		}
	}
	f.name = fmt.Sprintf("%s-%06d%s", stem, f.number+1, extension)
	return nil
}

// keepEntry makes the file's name as safe as its content: what a folder lost is lost, too.
func (f *file) keepEntry() error {
	if !f.sync {
		return nil
	}
	folder, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	return folder.Sync()
}

// check asks whether the next line could be written. After a write for which there was no room it tries one of the same
// length, made of blanks, and takes it back.
func (f *file) check() error {
	size, err := f.acquire()
	if err != nil {
		return err
	}
	defer f.release()
	if f.missed == 0 {
		return nil
	}
	blank := []byte(strings.Repeat(" ", f.missed-1) + "\n")
	n, err := f.f.Write(blank)
	if n > 0 {
		f.end = -1
		if info, failed := f.f.Stat(); failed == nil && info.Size() == size+int64(n) {
			_ = f.f.Truncate(size) // or there is a blank line
		}
	}
	if err == nil {
		f.missed = 0
	}
	return err
}

func (f *file) close() { f.forget() }
