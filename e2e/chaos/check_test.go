package chaos

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func second(n float64) time.Time { return began.Add(time.Duration(n * float64(time.Second))) }

// sound is a history in which every promise was kept: three messages of key a, three of b, of which an operator discarded one, one without a key, and a kill after which the second message of a came again under a new owner.
func sound() *History {
	entry := func(id, key string, n int64, at float64) Entry {
		return Entry{ID: id, Key: key, N: n, Digest: "d-" + id, At: second(at)}
	}
	arrival := func(id, key string, at float64, epoch string) Arrival {
		return Arrival{ID: id, Key: key, Digest: "d-" + id, Position: id, At: second(at), Epoch: epoch}
	}
	discarded := entry("b2", "b", 2, 3)
	discarded.Kind = Poison
	return &History{
		Meta:   Meta{Seed: 7, Store: "postgres", Broker: "jetstream", Started: began, DurationMS: 20_000, LeaseMS: 2_000, BesideMS: 7_000, Window: 10, Page: 10},
		Ledger: []Entry{entry("a1", "a", 1, 1), entry("a2", "a", 2, 4), entry("a3", "a", 3, 4.5), entry("b1", "b", 1, 2), discarded, entry("b3", "b", 3, 4), entry("x", "", 0, 4)},
		Arrivals: []Arrival{
			arrival("a1", "a", 1.1, "1"), arrival("b1", "b", 2.1, "1"), arrival("a2", "a", 4.9, "1"),
			arrival("x", "", 7, "2"), arrival("a2", "a", 7.5, "2"), arrival("a3", "a", 7.6, "2"), arrival("b3", "b", 7.7, "2"),
		},
		Faults: []Fault{{Kind: string(RelayKill), Target: "relay-1", At: second(5), End: second(5), Relays: 1}},
		Acts:   []Act{{At: second(7), Action: "discard", ID: "b2"}},
		Audit:  []string{"b2"},
	}
}

func TestASoundHistoryPasses(t *testing.T) {
	t.Parallel()
	r := Check(sound())
	if !r.OK || r.Committed != 7 || r.Received != 6 || r.Discarded != 1 || r.Duplicates != 1 || r.ByCause[Kill] != 1 {
		t.Errorf("got %+v", r)
	}
	if !strings.HasPrefix(r.Verdict, "PASS postgres+jetstream seed 7, 20s: 7 committed, 6 received, 0 lost") {
		t.Error(r.Verdict)
	}
	f := r.Faults[0]
	if f.InFlight != 2 || f.RecoveryMS == nil || *f.RecoveryMS != 2600 || f.AtMS != 5000 {
		t.Errorf("the kill met %d messages and was recovered from in %v ms", f.InFlight, f.RecoveryMS)
	}
}

// The checker must see each kind of damage, or every run that uses it is worthless.
func TestTheCheckerSeesEachKindOfDamage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		damage func(h *History)
		want   string
	}{
		"lost":                {func(h *History) { h.Arrivals = h.Arrivals[:6] }, "1 lost"},
		"first copy lost":     {func(h *History) { h.Arrivals = h.Arrivals[1:] }, "1 lost"},
		"lost, half done act": {func(h *History) { h.Audit = nil; h.Acts[0].Error = "connection refused" }, "1 lost"},
		"phantom":             {func(h *History) { h.Arrivals = append(h.Arrivals, Arrival{ID: "never", At: second(8)}) }, "1 never committed"},
		"altered bytes":       {func(h *History) { h.Arrivals[0].Digest = "other" }, "1 altered"},
		"altered key":         {func(h *History) { h.Arrivals[0].Key = "b" }, "1 altered"},
		"reordered": {func(h *History) {
			a := h.Arrivals
			a[2].ID, a[2].Digest, a[5].ID, a[5].Digest = "a3", "d-a3", "a2", "d-a2"
		}, "1 out of order"},
		"no audit":          {func(h *History) { h.Audit = nil }, "1 lost; 1 discards"},
		"nobody asked":      {func(h *History) { h.Acts = nil }, "1 lost; 1 discards"},
		"no fault between":  {func(h *History) { h.Arrivals[2].At = second(6.5) }, "1 duplicates without a reason"},
		"one owner, a kill": {func(h *History) { h.Arrivals[4].Epoch = "1" }, "1 duplicates without a reason"},
		"a fault that failed": {func(h *History) {
			h.Faults = append(h.Faults, Fault{Kind: string(RelayStop), At: second(9), End: second(9)})
			h.Faults[0].Error = "no process"
		}, "1 duplicates without a reason"},
		"much too late":    {func(h *History) { h.Arrivals[4].At = second(12.1) }, "1 duplicates without a reason"},
		"no duplicates":    {func(h *History) { h.Meta.NoDuplicates = true }, "1 duplicates of a sink that promises none"},
		"a writer's fault": {func(h *History) { h.Faults[0].Kind = string(WriterKill) }, "1 duplicates without a reason"},
		"a writer's link": {func(h *History) {
			h.Faults[0] = Fault{Kind: string(LinkHole), Target: writersLink, Detail: toDatabase, At: second(5), End: second(6)}
		}, "1 duplicates without a reason"},
		"an operator's act": {func(h *History) { h.Faults[0].Kind = string(PauseStorm) }, "1 duplicates without a reason"},
		"relays that leave": {func(h *History) { h.Faults[0].Kind = string(RelayScale) }, "1 duplicates without a reason"},
		"more than windows": {func(h *History) { h.Meta.Window, h.Meta.Page = 0, 0 }, "1 duplicates, more than the windows of all faults, 0"},
		"nothing sent":      {func(h *History) { h.Ledger, h.Arrivals, h.Acts, h.Audit = nil, nil, nil, nil }, "nothing was committed"},
		"nothing injected":  {func(h *History) { h.Faults, h.Arrivals = nil, append(h.Arrivals[:4:4], h.Arrivals[5:]...) }, "no fault was injected"},
		"idle": {func(h *History) {
			h.Faults = append(h.Faults, Fault{Kind: string(RelayKill), At: second(19), End: second(19), Relays: 1})
		}, "1 of 2 faults met nothing in flight"},
		"undrained":     {func(h *History) { h.Meta.Undrained = "nothing came for 30s" }, "not drained"},
		"left":          {func(h *History) { h.Meta.Left = map[string]int64{"parked": 1} }, "left in the outbox"},
		"a relay ended": {func(h *History) { h.Meta.Broken = []string{"relay-2 ended by itself"} }, "relay-2 ended by itself"},
	} {
		h := sound()
		c.damage(h)
		r := Check(h)
		if _, why, _ := strings.Cut(r.Verdict, " faults, drained in 0s: "); r.OK || !strings.HasPrefix(why, c.want) {
			t.Errorf("%s: OK is %v, the verdict %q, want %q", name, r.OK, why, c.want)
		}
	}
}

func TestDuplicatesHaveTheLikeliestCause(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults []Fault
		epoch  string // of the second copy
		want   Cause
	}{
		"a kill":                     {[]Fault{{Kind: string(DatabaseRestart)}, {Kind: string(RelayKill)}}, "2", Kill},
		"a stop":                     {[]Fault{{Kind: string(RelayStop)}}, "2", TakeOver},
		"a stop that nobody noticed": {[]Fault{{Kind: string(RelayStop)}}, "1", UncertainAck},
		"a lease that ran out":       {[]Fault{{Kind: string(TookOver), Observed: true}, {Kind: string(WriterKill)}}, "2", TakeOver},
		"the database, one owner":    {[]Fault{{Kind: string(Terminate)}, {Kind: string(RelayKill)}}, "1", Database},
		"the way to the database":    {[]Fault{{Kind: string(LinkCut), Target: "relay-1", Detail: toDatabase}}, "1", Database},
		"the way to the broker":      {[]Fault{{Kind: string(LinkCut), Target: "relay-1", Detail: toBroker}}, "1", UncertainAck},
		"the broker, another owner":  {[]Fault{{Kind: string(BrokerRestart)}}, "2", UncertainAck},
		"the nearest of two":         {[]Fault{{Kind: string(DatabaseCrash), End: second(5.2)}, {Kind: string(BrokerFull)}}, "1", UncertainAck},
	} {
		h := sound()
		for i := range c.faults {
			c.faults[i].At, c.faults[i].Relays = second(5), 1
			if c.faults[i].End.IsZero() {
				c.faults[i].End = second(5.5)
			}
		}
		h.Faults, h.Arrivals[4].Epoch = c.faults, c.epoch
		if r := Check(h); r.ByCause[c.want] != 1 || r.Unattributed != 0 {
			t.Errorf("%s: got %v, %d unattributed", name, r.ByCause, r.Unattributed)
		}
	}
}

// A copy that a pause, or the next fault, kept back for long is explained by the fault that made it necessary.
func TestWhatKeptASecondCopyBackExplainsWhenItCame(t *testing.T) {
	t.Parallel()
	h := sound()
	h.Arrivals[4].At, h.Arrivals[5].At, h.Arrivals[6].At = second(12.1), second(12.2), second(12.3)
	h.Faults = append(h.Faults, Fault{Kind: string(PauseStorm), At: second(6), End: second(9)})
	if r := Check(h); !r.OK || r.ByCause[Kill] != 1 {
		t.Error(r.Verdict)
	}
}

func TestAReportCanBeCheckedAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := sound()
	if err := h.Save(dir); err != nil {
		t.Fatal(err)
	}
	again, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(Check(again), Check(h)) {
		t.Errorf("got %+v, want %+v", Check(again), Check(h))
	}
	if _, err := Load(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no report") {
		t.Errorf("an empty folder: %v", err)
	}
}
