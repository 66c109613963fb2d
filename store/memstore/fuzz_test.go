package memstore_test

import (
	"context"
	"testing"

	"github.com/onwardhq/onward/store"
	"github.com/onwardhq/onward/store/memstore"
	"github.com/onwardhq/onward/store/storetest"
)

func FuzzMessages(f *testing.F) {
	storetest.FuzzMessages(f, func(testing.TB) (store.Store, func(context.Context) (storetest.Tx, error)) {
		db, w := memstore.New(memstore.Config{}), memstore.NewWriter(memstore.WriterConfig{})
		return db.Open(nil), func(context.Context) (storetest.Tx, error) {
			tx := db.Begin()
			return storetest.Transaction(w, tx,
				func(context.Context) error { return tx.Commit() }, func(context.Context) error { return tx.Rollback() }), nil
		}
	})
}
