//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package jsonl

import (
	"errors"
	"os"
	"syscall"
)

// openFlags: a pipe in the file's place is refused without waiting for its reader.
const openFlags = syscall.O_NONBLOCK

// tryLock takes the lock that all publishers of one file share, unless another one has it. Where the file system has no
// locks it is taken to be alone: O_APPEND still keeps whole what is written by one call.
func tryLock(f *os.File) (locked bool, err error) {
	err = control(f, func(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
	switch {
	case err == nil, errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		return false, nil
	}
	return false, err
}

func unlock(f *os.File) {
	_ = control(f, func(fd int) error { return syscall.Flock(fd, syscall.LOCK_UN) }) // closing the file gives it back, too
}

// control runs a call with the file's number, which cannot be closed meanwhile.
func control(f *os.File, call func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = call(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// duplicate opens the same stream once more. It is not number 1 any more, on which a write to a closed pipe would end
// the process (os/signal, SIGPIPE).
func duplicate(f *os.File) (*os.File, error) {
	var fresh int
	err := control(f, func(fd int) (err error) {
		syscall.ForkLock.RLock() // no child may inherit it before it is marked
		defer syscall.ForkLock.RUnlock()
		if fresh, err = syscall.Dup(fd); err == nil {
			syscall.CloseOnExec(fresh)
		}
		return err
	})
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fresh), f.Name()), nil
}
