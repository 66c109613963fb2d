package nats

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// compareBench is one key on a stream that itself forgets ids after 100 ms.
type compareBench struct {
	*bench
	key string
}

func newCompareBench(tb testing.TB) compareBench {
	tb.Helper()
	return compareBench{newBench(tb, commonURL(tb), noWindow), "k"}
}

func (b compareBench) open() *Publisher { return b.publisher(Config{Compare: true}) }

// write makes n messages of the key, as the outbox numbers them.
func (b compareBench) write(n int) []broker.Envelope {
	all := make([]broker.Envelope, n)
	for i := range all {
		all[i] = message(b.topic, b.key)
	}
	return all
}

func (b compareBench) subject() string { return b.topic + "." + b.key }

// send publishes one message after the other and compares the answers.
func (b compareBench) send(p *Publisher, s situation, all ...broker.Envelope) {
	b.tb.Helper()
	for _, m := range all {
		want(b.tb, publish(b.tb, b.context(), p, m)[0], s)
	}
}

// wantStored compares what the stream has of Onward's with messages, in order.
func (b compareBench) wantStored(all ...broker.Envelope) {
	b.tb.Helper()
	ms, err := b.read(b.context(), len(all))
	if err != nil {
		b.tb.Fatal(err)
	}
	var got, want []string
	for _, m := range ms {
		if id := m.Value("onward-id"); id != "" {
			got = append(got, id)
		}
	}
	for _, m := range all {
		want = append(want, m.ID.String())
	}
	if !slices.Equal(got, want) {
		b.tb.Errorf("the stream has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// forgotten waits until the stream itself would take a second copy.
func (b compareBench) forgotten() {
	b.tb.Helper()
	subject := strings.ToLower(b.stream) + ".window"
	send := func() uint64 {
		m := natsgo.NewMsg(subject)
		m.Header.Set(natsgo.MsgIdHdr, "window")
		ack, err := b.js.PublishMsg(b.context(), m)
		if err != nil {
			b.tb.Fatal(err)
		}
		if ack.Duplicate {
			return 0
		}
		return ack.Sequence
	}
	send()
	until(b.tb, "the stream forgets ids", func() bool { return send() != 0 })
	s, err := b.js.Stream(b.context(), b.stream)
	if err == nil {
		err = s.Purge(b.context(), jetstream.WithPurgeSubject(subject))
	}
	if err != nil {
		b.tb.Fatal(err)
	}
}

// A relay was killed: its messages come again, from a publisher that knows nothing. Those that are stored are found
// wherever they are; those that are not follow in order.
func TestWhatIsStoredIsFoundAfterACrash(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(12)
	b.send(b.open(), taken, all[:8]...)
	b.forgotten()
	for from := range 8 { // wherever the cursor stood
		b.send(b.open(), found, all[from])
	}
	p := b.open()
	b.send(p, found, all[2:8]...)
	b.send(p, taken, all[8:]...)
	b.wantStored(all...)
}

// The second copy has the position of the first.
func TestASecondCopyHasThePositionOfTheFirst(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(3)
	var first []string
	for _, r := range publish(t, b.context(), b.open(), all...) {
		first = append(first, r.Position)
	}
	b.forgotten()
	for i, r := range publish(t, b.context(), b.open(), all...) {
		if want(t, r, found); r.Position != first[i] {
			t.Errorf("message %d: position %q, want %q", i, r.Position, first[i])
		}
	}
}

// What is read of a message may be larger than what can be published: it comes in base64.
func TestALargeMessageIsFound(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(2)
	p := b.open()
	for i := range all {
		all[i].Payload = make([]byte, p.Capabilities().MaxBytes)
	}
	b.send(p, taken, all...)
	b.forgotten()
	b.send(b.open(), found, all...)
}

// The same publisher may get its own messages again, when the session of its relay was loaded again.
func TestAPublisherFindsItsOwnMessages(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(6)
	p := b.open()
	b.send(p, taken, all[:5]...)
	b.forgotten()
	b.send(p, found, all[1:5]...)
	b.send(p, taken, all[5])
	b.send(p, found, all[0])
	b.wantStored(all...)
}

// Numbers are not the order in which messages come: one that committed late, was parked or scheduled has a lower number
// than others that are stored. It is no duplicate for that, and after a crash each is found all the same.
func TestLateMessagesAreToldFromStoredOnes(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{1, 0}, {2, 1, 0}, {0, 3, 1, 4, 2}, {4, 0, 1, 2, 3}, {3, 4, 0, 1, 5, 2, 6}, {0, 5, 1, 2, 3, 4, 6, 7}} {
		for crash := range len(order) + 1 { // and nothing of it settled
			t.Run(fmt.Sprint(order, " crash after ", crash), func(t *testing.T) {
				t.Parallel()
				comesLate(t, order, crash)
			})
		}
	}
}

func comesLate(t *testing.T, order []int, crash int) {
	t.Helper()
	b := newCompareBench(t)
	all := b.write(len(order))
	var came []broker.Envelope
	for _, i := range order {
		came = append(came, all[i])
	}
	b.send(b.open(), taken, came[:crash]...)
	b.forgotten()
	p := b.open() // in the order of the outbox now
	var late []broker.Envelope
	for i, m := range all {
		s := taken
		if slices.Contains(order[:crash], i) {
			s = found
		} else {
			late = append(late, m)
		}
		b.send(p, s, m)
	}
	b.forgotten()
	b.send(p, found, all...)
	b.wantStored(append(came[:crash:crash], late...)...)
}

// A relay that was stopped while it published goes on when another one has its place: whatever it sends is stored once,
// and in order.
func TestAZombieNeitherRepeatsNorOvertakes(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(9)
	zombie, owner := b.open(), b.open()
	b.send(zombie, taken, all[:3]...)
	b.forgotten()
	b.send(owner, found, all[1:3]...)
	b.send(owner, taken, all[3:5]...)
	b.forgotten()
	b.send(zombie, found, all[3:5]...) // what it had in memory
	b.send(zombie, taken, all[5])      // it is the next one: it may
	b.forgotten()
	b.send(owner, found, all[5])
	b.send(owner, taken, all[6])
	b.send(zombie, found, all[6])
	b.send(zombie, taken, all[7])
	b.forgotten()
	b.send(owner, found, all[7])
	b.send(owner, taken, all[8])
	b.wantStored(all...)
}

// Two relays that both think that they own the key, each message of each at the same time.
func TestTwoOwnersAtOnceStoreEachMessageOnce(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(200)
	done := make(chan map[broker.Outcome]int, 2)
	for range 2 {
		p := b.open()
		go func() {
			outcomes := map[broker.Outcome]int{}
			for _, m := range all {
				outcomes[publish(t, b.context(), p, m)[0].Outcome]++
			}
			done <- outcomes
		}()
	}
	sum := map[broker.Outcome]int{}
	for range 2 {
		for outcome, n := range <-done {
			sum[outcome] += n
		}
	}
	if sum[broker.Accepted] != len(all) || sum[broker.Duplicate] != len(all) {
		t.Errorf("outcomes %v, want %d accepted and as many duplicate", sum, len(all))
	}
	b.wantStored(all...)
}

// What the stream no longer has cannot be compared with: it is stored again, and nothing is lost.
func TestWhatThePurgedStreamForgotIsStoredAgain(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(6)
	p := b.open()
	b.send(p, taken, all[:2]...)
	for range 4 {
		b.send(p, taken, message(b.topic, "other"))
	}
	b.send(p, taken, all[2:4]...)
	s, err := b.js.Stream(b.context(), b.stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMsg(b.context(), 7); err != nil { // a hole: what is before it is found
		t.Fatal(err)
	}
	b.forgotten()
	q := b.open()
	b.send(q, found, all[1], all[0], all[3])
	if err := s.Purge(b.context()); err != nil {
		t.Fatal(err)
	}
	b.send(p, taken, all[4])
	b.forgotten()
	b.send(q, taken, all[5])
	b.send(b.open(), found, all[4:]...)
	b.wantStored(all[4:]...)
}

// A stream that is deleted and made again begins its sequence again.
func TestAStreamThatIsMadeAgainIsReadAgain(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(6)
	p := b.open()
	b.send(p, taken, all[:3]...)
	b.deleteStream()
	b.send(p, noStream, all[3])
	b.makeStream()
	b.send(b.open(), taken, all[2], all[3], all[4]) // as many as before: the same last sequence
	b.forgotten()
	b.send(p, found, all[3:5]...)
	b.send(p, taken, all[5])
	b.wantStored(all[2:]...)
}

// A server that is killed and comes back has what it acknowledged; the publisher asks again and does not trust what it knew.
func TestNothingLearntOutlivesTheConnection(t *testing.T) {
	t.Parallel()
	s := newServer(t, "")
	b := compareBench{newBench(t, s.url(), func(c *jetstream.StreamConfig) {
		c.Storage = jetstream.FileStorage
		noWindow(c)
	}), "k"}
	p, q := b.open(), b.open()
	all := b.write(4)
	b.send(p, taken, all[:3]...)
	b.forgotten()
	b.send(q, found, all[2])
	s.kill()
	s.start()
	for _, one := range []*Publisher{p, q} {
		until(t, "the publisher is connected", func() bool { return one.Check(t.Context()) == nil })
	}
	learnt := func(one *Publisher, high, floor int64, known positions) { // as if the server had lost the tail, and others had filled it
		one.mu.Lock()
		defer one.mu.Unlock()
		l := one.compare.lanes[b.subject()]
		l.high, l.floor, l.known = high, floor, known
	}
	learnt(p, maxSeq, maxSeq-1, positions{all[3].ID: 3})
	learnt(q, all[1].Seq, all[1].Seq, nil)
	b.send(q, found, all[2])
	b.send(p, taken, all[3])
	b.send(p, found, all[:3]...)
	b.wantStored(all...)
}

// Late messages are remembered up to a bound, then read again.
func TestLateMessagesAreRememberedUpToABound(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	all := b.write(14)
	p := b.open()
	p.mu.Lock()
	p.compare.maxStored = 4
	p.mu.Unlock()
	b.send(p, taken, all[13])
	for _, m := range all[:13] {
		b.send(p, taken, m)
		p.mu.Lock()
		if known := len(p.compare.lanes[b.subject()].known); known > 14 || known != p.compare.stored {
			t.Errorf("%d messages are remembered, %d counted", known, p.compare.stored)
		}
		p.mu.Unlock()
	}
	p.mu.Lock()
	if p.compare.stored == 14 {
		t.Error("nothing was forgotten")
	}
	p.mu.Unlock()
	b.forgotten()
	b.send(p, found, all...)
}

// What is remembered is bounded: subjects and messages beyond it are read again.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	p := b.open()
	p.mu.Lock()
	p.compare.maxLanes, p.compare.maxStored = 3, 4
	p.mu.Unlock()
	var stored, late []broker.Envelope
	for n := range 5 {
		for k := range 8 {
			m := message(b.topic, fmt.Sprint("key-", k))
			if n == 2 {
				late = append(late, m)
				continue
			}
			stored = append(stored, m)
			b.send(p, taken, m)
		}
	}
	b.forgotten()
	for _, step := range []struct {
		all []broker.Envelope
		s   situation
	}{{stored, found}, {late, taken}, {late, found}, {stored, found}} {
		for _, m := range step.all {
			b.send(p, step.s, m)
			until(t, "the answered message is put away", func() bool { // the answer is out before the trimming
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.open == 0
			})
			p.mu.Lock()
			if lanes, known := len(p.compare.lanes), p.compare.stored; lanes > 3 || known > 4+5 { // and those of one subject
				t.Errorf("%d subjects and %d messages are remembered", lanes, known)
			}
			p.mu.Unlock()
		}
	}
	if n := b.count(); n != 40 {
		t.Errorf("the stream has %d messages, want 40", n)
	}
}

// Messages without a key have nothing to come behind, and are stored once too; nothing of them is remembered.
func TestMessagesWithoutAKeyAreStoredOnce(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	b.key = ""
	all := b.write(20)
	p := b.open()
	for _, r := range publish(t, b.context(), p, all...) {
		want(t, r, taken)
	}
	b.forgotten()
	for _, again := range []*Publisher{p, b.open()} {
		for _, r := range publish(t, b.context(), again, all...) {
			want(t, r, found)
		}
		until(t, "nothing is remembered", func() bool {
			again.mu.Lock()
			defer again.mu.Unlock()
			return len(again.compare.lanes) == 0 && again.compare.used.Len() == 0 && again.compare.stored == 0
		})
	}
	if n := b.count(); n != len(all) {
		t.Errorf("the stream has %d messages, want %d", n, len(all))
	}
}

// A user who may not read the stream cannot compare: Check says what is missing, and nothing is published.
func TestCompareModeNeedsToReadTheStream(t *testing.T) {
	t.Parallel()
	const info, get = `"$JS.API.STREAM.INFO.*"`, `"$JS.API.STREAM.MSG.GET.*"`
	s := newServer(t, `authorization { users: [
		{ user: all, password: p },
		{ user: blind, password: p, permissions: { publish: ["*.orders.*", `+info+`], subscribe: "_INBOX.>" } },
		{ user: few, password: p, permissions: { publish: ["*.orders.*", `+info+`, `+get+`], subscribe: "_INBOX.>" } } ] }`) // all that a relay needs
	b := compareBench{prepareBench(t, s.url(), natsgo.UserInfo("all", "p")), "k"}
	noWindow(&b.config)
	b.makeStream()
	all := b.write(2)
	p := b.publisher(Config{Compare: true, AckTimeout: 500 * time.Millisecond}, natsgo.UserInfo("blind", "p"))
	if err := p.Check(t.Context()); outbox.CodeOf(err) != broker.CodeUnavailable || !strings.Contains(outbox.Hint(err), "$JS.API.STREAM.MSG.GET."+b.stream) {
		t.Errorf("Check: %v (hint %q)", err, outbox.Hint(err))
	}
	if r := publish(t, b.context(), p, all[0])[0]; r.Outcome != broker.Unavailable {
		t.Errorf("published without reading: %s %v", r.Outcome, r.Err)
	}
	few := func() *Publisher { return b.publisher(Config{Compare: true}, natsgo.UserInfo("few", "p")) }
	b.send(few(), taken, all...)
	b.forgotten()
	b.send(few(), found, all...)
	b.wantStored(all...)
}

// Capabilities: a second copy is dropped as long as the stream has the first.
func TestDedupIsTheAgeOfTheStream(t *testing.T) {
	t.Parallel()
	b := newCompareBench(t)
	p := b.open()
	if got := p.Capabilities().Dedup; got < 100*365*24*time.Hour {
		t.Errorf("Dedup is %v where nothing ages", got)
	}
	b.updateStream(func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.Capabilities(); got.Dedup != time.Hour || got.Pipeline {
		t.Errorf("%+v", got)
	}
	if off := b.publisher(Config{}); p.Describe() != "no_duplicates=compare" || off.Describe() != "" {
		t.Errorf("described as %q, and %q without", p.Describe(), off.Describe())
	}
}
