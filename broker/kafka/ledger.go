package kafka

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
)

// ledger is which messages of a partition of the outbox were published and are not known to be settled, and when.
type ledger map[outbox.ID]time.Time

// How long a message is known that nobody reported as settled, and how many of a partition are at most. A relay reports each of
// its own within moments; of those before it, it never learns which their owner had settled.
const (
	ledgerKeeps = 7 * 24 * time.Hour
	ledgerMost  = 30_000
)

// trim forgets what is too old, and the oldest of what is too much.
func (l ledger) trim(now time.Time) {
	maps.DeleteFunc(l, func(_ outbox.ID, at time.Time) bool { return now.Sub(at) > ledgerKeeps })
	if len(l) <= ledgerMost {
		return
	}
	ids := slices.SortedFunc(maps.Keys(l), func(a, b outbox.ID) int { return l[a].Compare(l[b]) })
	for _, id := range ids[:len(ids)-ledgerMost] {
		delete(l, id)
	}
}

// ledgerFormat begins each value, so that another one can be told from it.
const ledgerFormat = 1

// append writes the ledger: its format, and for each hour since 1970 the number of ids and the ids. Hours are rounded up.
func (l ledger) append(b []byte) []byte {
	hours := map[int64][]outbox.ID{}
	for id, at := range l {
		h := at.Add(time.Hour-1).Unix() / 3600
		hours[h] = append(hours[h], id)
	}
	b = append(b, ledgerFormat)
	for _, h := range slices.Sorted(maps.Keys(hours)) {
		ids := hours[h]
		b = binary.AppendUvarint(b, uint64(h)) //nolint:gosec // hours since 1970
		b = binary.AppendUvarint(b, uint64(len(ids)))
		for _, id := range ids {
			b = append(b, id[:]...)
		}
	}
	return b
}

// read adds what append wrote.
func (l ledger) read(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if b[0] != ledgerFormat {
		return fmt.Errorf("kafka: the progress is of format %d, which a newer relay wrote: all relays of the sink must know it", b[0])
	}
	b = b[1:]
	for len(b) > 0 {
		hour, n := binary.Uvarint(b)
		count, m := binary.Uvarint(b[max(n, 0):])
		if n <= 0 || m <= 0 || uint64(len(b)-n-m)/16 < count {
			return fmt.Errorf("kafka: the progress cannot be read: %d bytes are left", len(b))
		}
		at := time.Unix(int64(hour)*3600, 0) //nolint:gosec // hours since 1970
		b = b[n+m:]
		for range count {
			l[outbox.ID(b[:16])] = at
			b = b[16:]
		}
	}
	return nil
}

// What the progress topic has of a sink, by the record's key:
//
//	NAME/own/PARTITION/ID   who may publish messages of the partition: live, or revoked by somebody who claims it
//	NAME/now/PARTITION      what its owner has published and not reported as settled; in each of its transactions
//	NAME/old/PARTITION      what those before it had
const (
	isLive    = "live"
	isRevoked = "revoked"
)

func ownKey(name string, partition int, id string) string {
	return name + "/own/" + strconv.Itoa(partition) + "/" + id
}
func nowKey(name string, partition int) string { return name + "/now/" + strconv.Itoa(partition) }
func oldKey(name string, partition int) string { return name + "/old/" + strconv.Itoa(partition) }

// view is what the progress topic says of a sink, as far as it was read.
type view struct {
	name   string
	owners map[int]map[string]string // of a partition: the transactional ids that may publish it
	now    map[int][]byte
	old    map[int][]byte
}

func newView(name string) *view {
	return &view{name: name, owners: map[int]map[string]string{}, now: map[int][]byte{}, old: map[int][]byte{}}
}

// entry is a record of the progress topic; a nil value takes the key away.
type entry struct {
	key   string
	value []byte
}

// apply takes over a committed record.
func (v *view) apply(e entry) {
	rest, ours := strings.CutPrefix(e.key, v.name+"/")
	kind, rest, found := strings.Cut(rest, "/")
	number, id, _ := strings.Cut(rest, "/")
	partition, err := strconv.Atoi(number)
	if !ours || !found || err != nil {
		return
	}
	switch kind {
	case "own":
		if v.owners[partition] == nil {
			v.owners[partition] = map[string]string{}
		}
		v.owners[partition][id] = string(e.value)
		if e.value == nil {
			delete(v.owners[partition], id)
		}
	case "now":
		v.now[partition] = e.value
	case "old":
		v.old[partition] = e.value
	}
}

// ledger is what is published of a partition.
func (v *view) ledger(partition int, now time.Time) (ledger, error) {
	l := ledger{}
	if err := l.read(v.old[partition]); err != nil {
		return nil, err
	}
	if err := l.read(v.now[partition]); err != nil {
		return nil, err
	}
	l.trim(now)
	return l, nil
}

// others are who else may publish messages of these partitions.
func (v *view) others(partitions []int, self string) []string {
	found := map[string]bool{}
	for _, p := range partitions {
		for id := range v.owners[p] {
			found[id] = found[id] || id != self
		}
	}
	delete(found, self)
	return slices.Sorted(maps.Keys(found))
}
