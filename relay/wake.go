package relay

// The values of Config.Wakeup.
const (
	WakeupAuto = "auto" // the database says when there is something to read, where it can
	WakeupOff  = "off"  // nobody asks it to: an idle relay polls every PollMax
)

// Wake makes an idle relay read at once instead of at its next poll. Call it after the commit of a transaction that wrote messages,
// in a service whose relay runs inside it (postgres.WriterConfig.Committed calls it after each InTx). It does not wait, may be called
// from any goroutine and at any time, and does nothing where Run is not under way. Losing a call costs a poll interval, never a
// message.
func (r *Relay) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for wake := range r.woken {
		nudge(wake)
	}
}

// wakes makes Wake nudge a turn until its end.
func (r *Relay) wakes(wake chan struct{}) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.woken[wake] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.woken, wake)
	}
}

func nudge(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // one is on its way
	}
}
