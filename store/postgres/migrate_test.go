package postgres

import (
	"testing"

	"github.com/onwardhq/onward/store/postgres/internal/pgtest"
)

func TestMigrateMakesAnOutboxThatTakesMessages(t *testing.T) {
	t.Parallel()
	db := newOutbox(t, 0)
	db.Exec(t, `INSERT INTO `+db.Table("messages")+` (topic, type, payload) VALUES ('orders', 'OrderPaid', '{}')`)
	if got := pgtest.One[string](t, db.Pool, `SELECT value FROM `+db.Table("meta")+` WHERE name = 'partitions'`); got != "64" {
		t.Errorf("partitions = %s, want 64", got)
	}
}
