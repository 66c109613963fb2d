package postgres

import (
	"context"
	"testing"
	"time"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// A relay counts its lease from before the renewal was sent: on a slow connection it would else publish after others have
// taken over.
func TestALeaseIsCountedFromBeforeItsRenewalWasSent(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	asleep(s)
	x := g.open()
	x.exec(`SELECT FROM ` + g.Table("relays") + ` FOR UPDATE`)
	renewed := make(chan store.Lease, 1)
	go func() {
		l, err := s.Renew(context.WithoutCancel(t.Context()), true)
		if err != nil {
			t.Error(err)
		}
		renewed <- l
	}()
	pgtest.Eventually(t, "the renewal waits", func() bool {
		return pgtest.One[bool](t, g.Pool, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%heartbeat_at%')`, g.Schema)
	})
	waits := time.Now()
	x.commit()
	if l := <-renewed; l.Until.After(waits.Add(s.member.Lease)) {
		t.Errorf("the lease lasts until %v after its renewal was on its way, want %v at most", l.Until.Sub(waits), s.member.Lease)
	}
}
