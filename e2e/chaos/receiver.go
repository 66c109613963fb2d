package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

// Webhook is an HTTP endpoint: a process that writes each message to a file before it answers.
const Webhook = "webhook"

// receiverProcess says that a process is a receiver, and which one.
const receiverProcess = "ONWARD_CHAOS_RECEIVER"

// Files in a receiver's folder that make it refuse.
const (
	denyFile  = "deny"  // the denied topic
	alarmFile = "alarm" // everything, for a time
)

// receiverConfig is what a receiver is started with.
type receiverConfig struct {
	Dir        string `json:"dir"`
	Port       int    `json:"port"`
	MaxMessage int64  `json:"max_message"` // bytes; more are 413
}

// openReceiver starts a receiver, and follows its file.
func (b *broker) openReceiver(ctx context.Context, maxMessage int32) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	b.server, err = harness.NewHTTP("receiver", b.log, func(port int) *exec.Cmd {
		text, _ := json.Marshal(receiverConfig{Dir: b.dir, Port: port, MaxMessage: int64(maxMessage)}) // texts and numbers
		cmd := exec.CommandContext(context.Background(), self)
		cmd.Env = append(os.Environ(), receiverProcess+"="+string(text))
		return cmd
	})
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := b.server.Start(starting); err != nil {
		return err
	}
	b.url = b.server.URL + "/hook"
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.group.Go(func() { b.follow(ctx) })
	return nil
}

// refuse makes a receiver refuse what the file stands for, or ends that.
func (b *broker) refuse(file string, is bool) error {
	name := filepath.Join(b.dir, file)
	if is {
		return os.WriteFile(name, nil, 0o600)
	}
	return os.Remove(name)
}

// run receives until SIGTERM, and answers what it has begun.
func (c receiverConfig) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	r := &receiver{receiverConfig: c}
	if err := r.open(); err != nil {
		return err
	}
	server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", c.Port), Handler: r, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = server.Shutdown(ending) // what hangs is cut off
	return r.file.Close()
}

// receiver has the file that it writes.
type receiver struct {
	receiverConfig
	mu   sync.Mutex
	file *os.File
	size int64 // of whole lines
}

// open opens the file. What a killed receiver had not written to its end was not answered: its line goes.
func (r *receiver) open() (err error) {
	if r.file, err = os.OpenFile(filepath.Join(r.Dir, "events.jsonl"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	text, err := io.ReadAll(r.file)
	if err != nil {
		return err
	}
	for r.size = int64(len(text)); r.size > 0 && text[r.size-1] != '\n'; {
		r.size--
	}
	return r.file.Truncate(r.size)
}

func (r *receiver) has(file string) bool {
	_, err := os.Stat(filepath.Join(r.Dir, file))
	return !errors.Is(err, fs.ErrNotExist)
}

// ServeHTTP answers 2xx once the message is on the disk.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	h := q.Header
	switch {
	case q.Method == http.MethodGet: // are you there
		return
	case r.has(alarmFile):
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case h.Get("onward-topic") == poisonedTopic:
		w.WriteHeader(http.StatusGone)
		return
	case h.Get("onward-topic") == deniedTopic && r.has(denyFile):
		w.WriteHeader(http.StatusForbidden)
		return
	}
	payload, err := io.ReadAll(http.MaxBytesReader(w, q.Body, r.MaxMessage))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		w.WriteHeader(http.StatusBadRequest) // it was cut off, and nobody reads this
		return
	}
	line, err := json.Marshal(map[string]any{
		"id": h.Get("onward-id"), "key": h.Get("onward-key"), "epoch": json.Number(h.Get("onward-epoch")), "payload_base64": payload,
	})
	if err == nil {
		err = r.append(append(line, '\n'))
	}
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// append writes a line, and syncs it: whoever was answered 2xx repeats nothing, so what a crash could lose would be lost for good.
func (r *receiver) append(line []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, err := r.file.WriteAt(line, r.size)
	if err == nil {
		err = r.file.Sync()
	}
	if err != nil {
		return errors.Join(err, r.file.Truncate(r.size))
	}
	r.size += int64(len(line))
	return nil
}
