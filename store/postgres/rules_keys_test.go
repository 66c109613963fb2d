package postgres

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/outbox"
	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// alike are keys that a collation, a form field or a careless comparison takes for equal. They are not: a key is its bytes.
func alike() []string {
	return []string{
		"key", "Key", "KEY", "key ", "key  ", " key", "key\u00a0", "key\u200b",
		"k\u00e9y", "ke\u0301y", "K\u00c9Y", // é as one character, as two, as a capital
		"stra\u00dfe", "strasse", "\u212bng", "\u00c5ng", "A\u030ang", // ß; the sign of the angstrom is an Å
		`a\b`, "a/b", "a%b", "a_b",
	}
}

// lines are keys, all in one partition, each with messages named after it.
type lines struct {
	*rig
	t     *testing.T
	s     *Session
	admin *Admin
	keys  []string
}

// onLines runs a test with the keys that look alike: in the database of the tests, and where the server has them, in one
// whose collation tells neither case nor accents.
func onLines(t *testing.T, test func(t *testing.T, l *lines)) {
	run := func(name string, in func(t *testing.T) *rig) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := in(t)
			admin, err := NewAdmin(g.Pool, Config{Schema: g.Schema, TablePrefix: g.Prefix})
			if err != nil {
				t.Fatal(err)
			}
			test(t, &lines{rig: g, t: t, s: g.join(), admin: admin, keys: alike()})
		})
	}
	run("bytes", func(t *testing.T) *rig { return newRig(t, 1) })
	conn, err := pgx.Connect(t.Context(), pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if conn.PgConn().ParameterStatus("server_version") >= "15" {
		run("a language", inALanguage)
	}
}

// inALanguage is an outbox in a database that compares text by its base letters alone, as far as PostgreSQL does.
func inALanguage(t *testing.T) *rig {
	db := pgtest.New(t)
	database := db.Schema + "_icu"
	name := pgx.Identifier{database}.Sanitize()
	db.Exec(t, `CREATE DATABASE `+name+` TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'und-u-ks-level1' LOCALE 'C'`)
	t.Cleanup(func() {
		if _, err := db.Pool.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
	})
	pool := pgtest.Connect(t, db.URL, func(c *pgxpool.Config) { c.ConnConfig.Database = database })
	if err := Migrate(t.Context(), pool, MigrateConfig{TablePrefix: db.Prefix, Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	if !pgtest.One[bool](t, pool, `SELECT 'KEY' < 'kez' AND 'key' < 'KEZ'`) {
		t.Fatal("the database compares bytes")
	}
	g := &rig{DB: &pgtest.DB{Pool: pool, URL: db.URL, Schema: "public", Prefix: db.Prefix}, t: t}
	g.store = openStore(t, g.DB, pool)
	return g
}

func textOf(n int, key string) string { return fmt.Sprintf("%d of %q", n, key) }

// writeEach writes the n-th message of every key.
func (l *lines) writeEach(n int) {
	l.t.Helper()
	texts := make([]string, len(l.keys))
	for i, key := range l.keys {
		texts[i] = textOf(n, key)
	}
	l.Exec(l.t, `INSERT INTO `+l.Table("messages")+` (topic, type, partition_key, payload)
		SELECT 'orders', 'OrderPaid', u.key, convert_to(u.text, 'UTF8') FROM unnest($1::text[], $2::text[]) u(key, text)`, l.keys, texts)
}

// next writes the n-th message of every key, reads them all, and settles them: verdict says what becomes of each.
func (l *lines) next(n int, verdict func(key string) *store.Verdict) {
	l.t.Helper()
	l.writeEach(n)
	p := l.read(l.s)
	if got := len(payloads(p)); got != len(l.keys) {
		l.t.Fatalf("%d messages came, want %d", got, len(l.keys))
	}
	m := done(p)
	for _, r := range p.Parts[0].Records {
		if v := verdict(r.Key); v != nil {
			m.Verdicts = append(m.Verdicts, verdictOf(r, *v))
		}
		if want := textOf(n, r.Key); string(r.Payload) != want {
			l.t.Errorf("%q came as %s", r.Key, r.Payload)
		}
	}
	l.settle(l.s, m)
}

// due settles the heads that are due as out, and wants them to be this message.
func (l *lines) due(when, want string) {
	l.t.Helper()
	h, err := l.s.Heads(l.t.Context(), []int{0}, 1000)
	if err != nil {
		l.t.Fatal(err)
	}
	var got []string
	var m store.Settlement
	for _, p := range h.Due {
		got = append(got, string(p.Payload))
		v := verdictOf(store.Record{Record: p.Record}, store.Verdict{To: store.Out})
		v.FromParked = true
		m.Verdicts = append(m.Verdicts, v)
	}
	wantTexts(l.t, "heads "+when, got, []string{want})
	l.settle(l.s, m)
}

func (l *lines) followers(key string) (texts []string) {
	l.t.Helper()
	found, err := l.s.Followers(l.t.Context(), store.Key{Partition: 0, Key: key}, store.Place{}, room(l.s, 1000))
	if err != nil {
		l.t.Fatal(err)
	}
	for _, p := range found {
		texts = append(texts, string(p.Payload))
	}
	return texts
}

// idOf is the id of a message of a key.
func (l *lines) idOf(n int, key string) outbox.ID {
	l.t.Helper()
	return outbox.ID(pgtest.One[[16]byte](l.t, l.Pool, `SELECT id FROM `+l.Table("messages")+` WHERE payload = convert_to($1, 'UTF8')`, textOf(n, key)))
}

// While one key has something parked, or dead before it, messages of that key are blocked and no others.
func TestKeysThatLookAlikeAreBlockedAlone(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, l *lines) {
		tried := &store.Attempt{No: 1, Outcome: "retry", Code: "onward/rejected"}
		for i, failing := range l.keys {
			v := store.Verdict{To: store.Park, Reason: store.ReasonRetry, Due: time.Hour, Attempts: 1, Tried: tried}
			if i%2 == 1 {
				v = store.Verdict{To: store.Dead, Blocks: true, Attempts: 1, Tried: tried}
			}
			l.next(2*i, func(key string) *store.Verdict {
				if key == failing {
					return &v
				}
				return nil
			})
			l.writeEach(2*i + 1)
			p := l.read(l.s)
			var blocked []string
			for _, r := range p.Parts[0].Records {
				if r.Blocked {
					blocked = append(blocked, r.Key)
				}
			}
			if !slices.Equal(blocked, []string{failing}) {
				t.Errorf("%q has a message that is parked or dead, and %q are blocked", failing, blocked)
			}
			l.settle(l.s, done(p))
			if err := l.admin.Discard(t.Context(), store.Act{Sink: "orders", ID: l.idOf(2*i, failing), Reason: "test"}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Each key has its own line of parked messages: its followers, and its next head when the one before has gone.
func TestKeysThatLookAlikeHaveLinesOfTheirOwn(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, l *lines) {
		l.next(1, func(string) *store.Verdict {
			return &store.Verdict{To: store.Park, Reason: store.ReasonRetry, Due: time.Hour, Attempts: 1}
		})
		behind := func(string) *store.Verdict { return &store.Verdict{To: store.Park, Reason: store.ReasonBehind} }
		l.next(2, behind)
		l.next(3, behind)
		for i, key := range l.keys {
			wantTexts(t, "followers of "+key, l.followers(key), []string{textOf(1, key), textOf(2, key), textOf(3, key)})
			if i%2 == 0 {
				if err := l.admin.Discard(t.Context(), store.Act{Sink: "orders", ID: l.idOf(1, key), Reason: "test"}); err != nil {
					t.Fatal(err)
				}
			} else {
				m := store.Settlement{Verdicts: []store.Verdict{{Partition: 0, Key: key, ID: l.idOf(1, key), FromParked: true, To: store.Out}}}
				l.settle(l.s, m)
			}
			l.due("after the first of "+key, textOf(2, key))
			l.due("after the second of "+key, textOf(3, key))
			wantTexts(t, "then", l.followers(key), nil)
		}
	})
}

// A person who requeues or discards a dead letter lets its own key go on, and finds its own messages by its key.
func TestRepairingAKeyLeavesThoseThatLookAlike(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, l *lines) {
		l.next(1, func(string) *store.Verdict { return &store.Verdict{To: store.Dead, Blocks: true, Attempts: 1} })
		l.next(2, func(string) *store.Verdict { return &store.Verdict{To: store.Park, Reason: store.ReasonBehind} })
		ids := func(ms []store.MessageInfo) (all []outbox.ID) {
			for _, m := range ms {
				all = append(all, m.ID)
			}
			return all
		}
		for i, key := range l.keys {
			first, second := l.idOf(1, key), l.idOf(2, key)
			list, err := l.admin.Messages(t.Context(), store.Filter{Sink: "orders", Key: key})
			if err != nil || !slices.Equal(ids(list.Messages), []outbox.ID{second, first}) {
				t.Errorf("messages of %q: %v, %v", key, ids(list.Messages), err)
			}
			dead, err := l.admin.Dead(t.Context(), store.Filter{Sink: "orders", Key: key})
			if err != nil || len(dead.Dead) != 1 || dead.Dead[0].ID != first {
				t.Errorf("dead letters of %q: %v, %v", key, dead.Dead, err)
			}
			wantTexts(t, "followers of "+key+", which is blocked", l.followers(key), nil)
			act := store.Act{Sink: "orders", ID: first, Reason: "test"}
			if i%2 == 0 {
				err = l.admin.Requeue(t.Context(), act, false)
			} else {
				err = l.admin.Discard(t.Context(), act)
			}
			if err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 {
				l.due("after the requeue of "+key, textOf(1, key))
			}
			l.due("and then of "+key, textOf(2, key))
		}
	})
}

// Numbers without gaps are each key's own.
func TestKeysThatLookAlikeAreNumberedAlone(t *testing.T) {
	t.Parallel()
	onLines(t, func(t *testing.T, l *lines) {
		for n := range 3 {
			for _, key := range l.keys {
				l.Exec(t, `SELECT `+l.Table("send")+`('orders', 'OrderPaid', $1, key => $2, serialize => true)`, []byte(textOf(n+1, key)), key)
			}
		}
		p := l.read(l.s)
		for _, r := range p.Parts[0].Records {
			if want := textOf(int(r.KeySeq), r.Key); string(r.Payload) != want { //nolint:gosec // 1 to 3
				t.Errorf("%s has the number %d", r.Payload, r.KeySeq)
			}
		}
		if got := len(payloads(p)); got != 3*len(l.keys) {
			t.Errorf("%d messages came, want %d", got, 3*len(l.keys))
		}
	})
}
