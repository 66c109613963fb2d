package storetest

import (
	"fmt"
	"slices"
)

// ledger knows what was written and committed, and what was handed over; names are unique.
type ledger struct {
	clock  int
	tx     map[string]int
	key    map[string]string
	began  map[string]int // when it was written
	ended  map[string]int // when it was committed
	order  []string       // as handed over
	keyed  map[string][]string
	copies map[string]int
}

func newLedger() *ledger {
	return &ledger{
		tx: map[string]int{}, key: map[string]string{}, began: map[string]int{}, ended: map[string]int{},
		keyed: map[string][]string{}, copies: map[string]int{},
	}
}

// write notes messages of a key; it is called before they are written.
func (l *ledger) write(tx int, key string, names ...string) {
	for _, name := range names {
		l.clock++
		l.tx[name], l.key[name], l.began[name] = tx, key, l.clock
	}
}

// commit notes that messages were committed; it is called afterwards. Those of one call count in their order.
func (l *ledger) commit(names ...string) {
	for _, name := range names {
		l.clock++
		l.ended[name] = l.clock
	}
}

// handOver notes a copy.
func (l *ledger) handOver(name string) {
	l.copies[name]++
	if l.copies[name] == 1 {
		l.order = append(l.order, name)
		l.keyed[l.key[name]] = append(l.keyed[l.key[name]], name)
	}
}

// faults says what is lost, was never committed, came twice without excuse, or came in the wrong order: where A was
// committed before B of the same key was written, or was written before it in the same transaction, A comes first.
func (l *ledger) faults(excused map[string]bool) (faults []string) {
	for name := range l.ended {
		if n := l.copies[name]; n == 0 {
			faults = append(faults, name+" is lost")
		} else if n > 1 && !excused[name] {
			faults = append(faults, fmt.Sprintf("%s came %d times", name, n))
		}
	}
	for name := range l.copies {
		if l.ended[name] == 0 {
			faults = append(faults, name+" was never committed")
		}
	}
	for key, order := range l.keyed {
		if key == "" {
			continue
		}
		for i, later := range order {
			for _, earlier := range order[:i] {
				if l.ended[later] < l.began[earlier] || l.tx[later] == l.tx[earlier] && l.began[later] < l.began[earlier] {
					faults = append(faults, fmt.Sprintf("%s came before %s, which stands before it", earlier, later))
				}
			}
		}
	}
	return faults
}

// forget takes a message out that a person discarded.
func (l *ledger) forget(name string) {
	delete(l.ended, name)
	delete(l.copies, name)
	l.keyed[l.key[name]] = slices.DeleteFunc(l.keyed[l.key[name]], func(n string) bool { return n == name })
}
