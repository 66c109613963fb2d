package storetest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/onwardhq/onward/outbox"
)

var writing = []spec{
	{"ReceiptsNameWhatWasWritten", receiptsName},
	{"KeysLieInTheDocumentedPartitions", documentedPartitions},
	{"MissingIDsAreDrawn", missingIDs},
	{"ADuplicateIDIsRefused", duplicateRefused},
	{"ADuplicateIDIsIgnoredOnRequest", duplicateIgnored},
	{"ARolledBackIDMayBeWrittenAgain", rolledBackID},
	{"WritingNothingIsNothing", writingNothing},
	{"OneBadMessageRefusesAll", badMessageRefusesAll},
	{"AFinishedTransactionTakesNothing", finishedTakesNothing},
	{"ACancelledWriteWritesNothing", cancelledWrite},
	{"ManyMessagesInOneCallKeepTheirOrder", manyInOneCall},
	{"SmallAndLargePayloadsArrive", payloadsArrive},
}

func receiptsName(s *suite) {
	r := s.alone()
	tx := s.begin()
	receipts := s.write(tx, s.message("a", "k"), s.message("b", "l"))
	one, err := tx.Write(s.ctx, s.message("c", "k"))
	s.ok(err, "write one")
	receipts = append(receipts, one)
	s.commit(tx)
	byID := map[outbox.ID]taken{}
	for _, t := range r.drain() {
		byID[t.ID] = t
	}
	for i, receipt := range receipts {
		t := byID[receipt.ID]
		s.want("receipt", []any{receipt.Partition, receipt.Seq, receipt.Tx}, []any{t.Partition, t.Seq, receipts[0].Tx})
		if i > 0 && receipt.Seq <= receipts[i-1].Seq {
			s.Errorf("seq %d follows %d", receipt.Seq, receipts[i-1].Seq)
		}
		m, err := s.Admin.Message(s.ctx, receipt.ID)
		s.ok(err, "show")
		s.want("transaction", m.Tx, receipt.Tx)
	}
	if next := s.sendNamed("k", "d")[0]; next.Tx != 0 && next.Tx == one.Tx {
		s.Errorf("two transactions have the number %d", next.Tx)
	}
}

func documentedPartitions(s *suite) {
	vectors := map[string]int{"a": 18, `a\b`: 16, "ünï": 41, "日本": 12}
	for key, at64 := range vectors {
		receipt := s.sendNamed(key, "m")[0]
		s.want("partition of "+key, receipt.Partition, s.partitionOf(key))
		if s.partitions == 64 {
			s.want("partition of "+key+" among 64", receipt.Partition, at64)
		}
	}
	for range 8 {
		receipt := s.sendNamed("", "m")[0]
		s.want("partition without a key", receipt.Partition, s.partitionOf(receipt.ID.String()))
	}
}

func missingIDs(s *suite) {
	m := s.message("a", "k")
	m.ID = outbox.ID{}
	receipts := s.send(m, m)
	for _, receipt := range receipts {
		if receipt.ID.IsZero() || receipt.ID.String()[14] != '7' {
			s.Errorf("%s is not a UUIDv7", receipt.ID)
		}
		_, err := s.Admin.Message(s.ctx, receipt.ID)
		s.ok(err, "show")
	}
	if receipts[0].ID == receipts[1].ID {
		s.Error("two messages have one id")
	}
}

func duplicateRefused(s *suite) {
	r := s.alone()
	m := s.message("first", "k")
	s.send(m)
	again := s.message("second", "other")
	again.ID = m.ID
	tx := s.begin()
	s.write(tx, s.message("with it", "k"))
	_, err := tx.Write(s.ctx, again)
	s.wantError("write", err, outbox.ErrDuplicateMessage)
	s.ok(tx.Rollback(s.ctx), "rollback")
	tx = s.begin()
	_, err = tx.WriteAll(s.ctx, []outbox.Message{s.message("x", "k"), again})
	s.wantError("write all", err, outbox.ErrDuplicateMessage)
	s.ok(tx.Rollback(s.ctx), "rollback")
	twice := s.message("twice", "k")
	tx = s.begin()
	_, err = tx.WriteAll(s.ctx, []outbox.Message{twice, twice})
	s.wantError("write one twice", err, outbox.ErrDuplicateMessage)
	s.ok(tx.Rollback(s.ctx), "rollback")
	ts := r.drain()
	s.want("messages", names(ts), []string{"first"})
	r.settle(ts, fromLog(ts[0], dies(true, 1)))
	tx = s.begin()
	_, err = tx.Write(s.ctx, again)
	s.wantError("write what is dead", err, outbox.ErrDuplicateMessage)
}

func duplicateIgnored(s *suite) {
	if s.BeginIgnoring == nil {
		s.lacks("a writer that ignores duplicates")
		return
	}
	r := s.alone()
	m := s.message("first", "k")
	first := s.send(m)[0]
	again := s.message("second", "other")
	again.ID = m.ID
	fresh := s.message("fresh", "k")
	tx := s.BeginIgnoring(s.T)
	s.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	one, err := tx.Write(s.ctx, again)
	s.ok(err, "write")
	s.want("receipt of the first", one, first)
	all, err := tx.WriteAll(s.ctx, []outbox.Message{again, fresh, fresh})
	s.ok(err, "write all")
	if len(all) != 3 {
		s.Fatalf("%d receipts, want 3", len(all))
	}
	s.want("receipt of the first", all[0], first)
	s.want("receipts of one message", all[2], all[1])
	s.want("id", all[1].ID, fresh.ID)
	s.commit(tx)
	got := r.drain()
	s.want("messages", names(got), []string{"first", "fresh"})
	s.want("seq", got[1].Seq, all[1].Seq)
}

func rolledBackID(s *suite) {
	m := s.message("a", "k")
	tx := s.begin()
	s.write(tx, m)
	s.ok(tx.Rollback(s.ctx), "rollback")
	s.send(m)
	s.want("messages", names(s.alone().drain()), []string{"a"})
}

func writingNothing(s *suite) {
	tx := s.begin()
	receipts, err := tx.WriteAll(s.ctx, nil)
	s.ok(err, "write nothing")
	s.want("receipts", len(receipts), 0)
	s.commit(tx)
	s.want("messages", names(s.alone().drain()), []string(nil))
}

func badMessageRefusesAll(s *suite) {
	r := s.alone()
	tx := s.begin()
	for _, c := range []struct {
		want   *outbox.Error
		change func(*outbox.Message)
	}{
		{outbox.ErrTopicRequired, func(m *outbox.Message) { m.Topic = "" }},
		{outbox.ErrTypeRequired, func(m *outbox.Message) { m.Type = "" }},
		{outbox.ErrFieldTooLong, func(m *outbox.Message) { m.Key = strings.Repeat("k", outbox.MaxKey+1) }},
		{outbox.ErrFieldInvalid, func(m *outbox.Message) { m.Key = "a\x00" }},
		{outbox.ErrFieldInvalid, func(m *outbox.Message) { m.Type = "\xff" }},
		{outbox.ErrHeaderReserved, func(m *outbox.Message) { m.Headers = map[string]string{"Onward-ID": "x"} }},
		{outbox.ErrHeaderInvalid, func(m *outbox.Message) { m.Headers = map[string]string{"x": "\n"} }},
		{outbox.ErrPayloadTooLarge, func(m *outbox.Message) { m.Payload = make([]byte, outbox.MaxPayload+1) }},
	} {
		bad := s.message("bad", "k")
		c.change(&bad)
		_, err := tx.WriteAll(s.ctx, []outbox.Message{s.message("good", "k"), bad})
		s.wantError("write all", err, c.want)
		_, err = tx.Write(s.ctx, bad)
		s.wantError("write", err, c.want)
	}
	s.write(tx, s.message("then", "k")) // the database was never asked: the transaction goes on
	s.commit(tx)
	s.want("messages", names(r.drain()), []string{"then"})
}

func finishedTakesNothing(s *suite) {
	for name, end := range map[string]func(Tx) error{
		"committed":   func(tx Tx) error { return tx.Commit(s.ctx) },
		"rolled back": func(tx Tx) error { return tx.Rollback(s.ctx) },
	} {
		tx := s.begin()
		s.ok(end(tx), name)
		_, err := tx.Write(s.ctx, s.message("never", "k"))
		s.wantError("write in a transaction that is "+name, err, outbox.ErrNoTransaction)
	}
	s.want("messages", names(s.alone().drain()), []string(nil))
}

func cancelledWrite(s *suite) {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	tx := s.begin()
	if _, err := tx.Write(ctx, s.message("never", "k")); err == nil {
		s.Error("a write with a cancelled context says nothing")
	}
	_ = tx.Commit(s.ctx) // it may be refused, or commit nothing
	s.want("messages", names(s.alone().drain()), []string(nil))
}

func manyInOneCall(s *suite) {
	r := s.alone()
	var ms []outbox.Message
	for i := range 5000 {
		ms = append(ms, s.message(fmt.Sprintf("%04d", i), fmt.Sprintf("key-%d", i%7)))
	}
	receipts := s.send(ms...)
	for i, receipt := range receipts {
		if receipt.ID != ms[i].ID || i > 0 && receipt.Seq <= receipts[i-1].Seq {
			s.Fatalf("receipt %d is %s, after %s", i, receipt, receipts[max(0, i-1)])
		}
	}
	ts := r.drain()
	s.want("messages", len(ts), 5000)
	s.wantOrderOfKeys(ts)
}

func payloadsArrive(s *suite) {
	r := s.alone()
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, payload := range [][]byte{nil, {}, every, bytes.Repeat([]byte("é"), outbox.MaxPayload/2)} {
		m := s.message("", "k")
		m.Payload = payload
		s.send(m)
		ts := r.drain()
		if len(ts) != 1 || !bytes.Equal(ts[0].Payload, payload) {
			s.Errorf("a payload of %d bytes did not arrive", len(payload))
		}
	}
	at := s.now().Add(time.Hour).Truncate(time.Second).Add(123456789)
	m := s.message("", "k")
	m.AvailableAt = at
	s.send(m)
	if got := r.drain()[0].AvailableAt; got.Sub(at).Abs() > time.Microsecond {
		s.Errorf("available at %s, want %s to the microsecond", got, at)
	}
}
