package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

// Rows written within savepoints belong to the whole transaction, however many there are.
func TestRowsOfManySavepointsComeWithTheirTransaction(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join(pages(8))
	x := g.open()
	var want, others []string
	for i := range 80 {
		text := fmt.Sprint("s", i)
		x.exec("SAVEPOINT s")
		x.write("a", text)
		switch {
		case i%8 == 7:
			x.exec("ROLLBACK TO SAVEPOINT s")
		case i%8 < 4:
			x.exec("RELEASE SAVEPOINT s")
			fallthrough
		default: // stays open
			want = append(want, text)
		}
		if i%20 == 0 {
			g.write("a", text+"-other")
			others = append(others, g.drain(s)...)
		}
	}
	wantTexts(t, "others meanwhile", others, []string{"s0-other", "s20-other", "s40-other", "s60-other"})
	x.commit()
	wantTexts(t, "after the commit", g.collect(s, 0, 1, 2, 3), want)
	wantTexts(t, "after a restart", g.collect(g.crash(s), 0, 1, 2, 3), nil)
}

// A prepared transaction outlives its connection and the relay: its rows come when it is committed. One that is forgotten
// holds nobody up.
func TestRowsOfAPreparedTransactionComeWhenItIsCommitted(t *testing.T) {
	t.Parallel()
	g := newRig(t, 4)
	s := g.join()
	prepare := func(name, text string) string {
		x := g.open()
		x.write("a", text)
		id := g.Schema + "-" + name
		x.exec(`PREPARE TRANSACTION '` + id + `'`)
		return id
	}
	forgotten := prepare("forgotten", "forgotten")
	t.Cleanup(func() {
		if _, err := g.Pool.Exec(context.Background(), `ROLLBACK PREPARED '`+forgotten+`'`); err != nil {
			t.Error(err)
		}
	})
	prepared := prepare("prepared", "prepared")
	g.write("a", "others")
	wantTexts(t, "before the commit", g.drain(s), []string{"others"})
	s = g.crash(s)
	g.write("a", "after a restart")
	wantTexts(t, "after a restart", g.drain(s), []string{"after a restart"})
	g.Exec(t, `COMMIT PREPARED '`+prepared+`'`)
	g.write("a", "next")
	wantTexts(t, "after the commit", g.drain(s), []string{"prepared", "next"})
}

// A transaction that stays open, here or in another database of the server, holds nobody up.
func TestATransactionThatStaysOpenHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"here", "in another database"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			g := newRig(t, 4)
			if where == "here" {
				x := g.open()
				x.write("a", "never")
			} else {
				elsewhere := pgtest.Connect(t, g.URL, func(c *pgxpool.Config) { c.ConnConfig.Database = "postgres" })
				x, err := elsewhere.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = x.Rollback(context.Background()) })
				if _, err := x.Exec(t.Context(), `SELECT pg_current_xact_id()`); err != nil {
					t.Fatal(err)
				}
			}
			s := g.join()
			for range 3 {
				late := g.open()
				late.write("a", "late")
				g.write("a", "1", "2")
				wantTexts(t, "meanwhile", g.drain(s), []string{"1", "2"})
				late.commit()
				g.write("b", "3")
				wantTexts(t, "and then", sorted(g.drain(s)), []string{"3", "late"})
				s = g.crash(s)
			}
		})
	}
}
