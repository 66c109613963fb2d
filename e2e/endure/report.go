package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/onwardhq/onward/e2e/harness"
)

// report is what a run showed, and what is needed to run it again.
type report struct {
	What    string            `json:"what"` // kills, restarts
	Holds   bool              `json:"holds"`
	Broken  []string          `json:"broken,omitempty"` // promises, in words
	Count   int               `json:"count"`            // kills; or restarts and scale changes
	Scales  int               `json:"scale_changes"`    // of Count
	Verdict harness.Verdict   `json:"verdict"`
	Owners  harness.Ownership `json:"owners"`
	Flight  flights           `json:"in_flight"`
	// Replaced is how many relays others took over although nothing had been done to them: they had not been able to renew their lease.
	Replaced int      `json:"replaced"`
	Died     []string `json:"died,omitempty"` // relays that ended by themselves, or not as they should have
	Relays   int      `json:"relays"`
	Lease    string   `json:"lease"`
	Seed     uint64   `json:"seed"`
	Commit   string   `json:"commit"`
	Began    string   `json:"began"`
	Took     string   `json:"took"`
	On       string   `json:"on"`
	Saved    string   `json:"saved,omitempty"` // the run, where it broke a promise
}

// flights is what was in flight when relays were killed, or told to stop.
type flights struct {
	Relays     int `json:"relays"`     // that had messages in flight
	Messages   int `json:"messages"`   // handed to the publisher and not settled, over all of them
	Unanswered int `json:"unanswered"` // of them, those that the broker had not answered for
	Most       int `json:"most"`       // of one relay
}

func (f *flights) add(of *harness.Flight) {
	n := of.Unsettled()
	if n > 0 {
		f.Relays++
	}
	f.Messages += n
	f.Unanswered += max(0, of.Unanswered())
	f.Most = max(f.Most, n)
}

// judge says which promises were broken. What comes twice must be of a relay that was killed or replaced; with graceful restarts
// nothing may.
func (r *report) judge() {
	r.Broken = nil
	broken := func(n int, what string) {
		if n > 0 {
			r.Broken = append(r.Broken, fmt.Sprintf("%d %s", n, what))
		}
	}
	broken(r.Verdict.Lost, "lost")
	broken(r.Verdict.Phantom, "that nobody had committed")
	broken(r.Verdict.Reordered, "out of order")
	broken(r.Owners.Shared, "epochs of two owners")
	broken(r.Owners.Living, "came twice although nothing was done to the relay that published them")
	broken(len(r.Died), "relays did not end as they should have")
	if r.What == "restarts" {
		broken(r.Verdict.Duplicates, "came twice")
	}
	if r.Verdict.Sent == 0 || r.Flight.Messages == 0 {
		r.Broken = append(r.Broken, "nothing was in flight, so nothing was shown")
	}
	r.Holds = len(r.Broken) == 0
}

// String is the one-line verdict.
func (r *report) String() string {
	how := "HOLDS"
	if !r.Holds {
		how = "BROKEN (" + strings.Join(r.Broken, "; ") + ")"
	}
	return fmt.Sprintf("%s: %d %s, %d with messages in flight (%d messages); %v; %d owners, %d epochs of two; seed %d, commit %s, took %s",
		how, r.Count, r.What, r.Flight.Relays, r.Flight.Messages, r.Verdict, r.Owners.Owners, r.Owners.Shared, r.Seed, r.Commit, r.Took)
}

// machine is what the run was made on.
func machine(servers ...string) string {
	return fmt.Sprintf("%s/%s, %d cores, %s, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), strings.Join(servers, ", "))
}

func round(d time.Duration) string { return d.Round(time.Second).String() }
