package postgres

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/doctor"
)

// muchLog is how much of the write-ahead log a slot that is read keeps back before it is said.
const muchLog = 1 << 30

// transactions are those that have been open for long: they keep what retention has removed, and what they have written
// comes late.
func (x *examination) transactions(ctx context.Context) error {
	rows, err := x.pool.Query(ctx, x.text("transactions"), x.old.Milliseconds())
	if err != nil {
		return err
	}
	count, unseen := 0, 0
	var pid int
	var user, program, state string
	var n int64
	var hidden bool
	_, err = pgx.ForEachRow(rows, []any{&pid, &user, &program, &state, &n, &hidden}, func() error {
		if hidden {
			unseen = int(n)
			return nil
		}
		count++
		x.found("postgres-transactions", doctor.Warning, fmt.Sprintf("process %d (%s) has had a transaction open for %v, and is %s", pid, strings.TrimSpace(user+" "+program), seconds(n), state),
			"rows that were removed since stay in the tables, which grow; what it has written of the outbox is published when it commits", fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid))
		return nil
	})
	switch {
	case err != nil:
		return err
	case unseen > 0 && !x.sees:
		x.found("postgres-transactions", doctor.Unknown, fmt.Sprintf("%d transactions of other users are open, and this one may not see since when", unseen), "", "GRANT pg_read_all_stats TO "+pgx.Identifier{x.user}.Sanitize()+";")
	case count == 0:
		x.found("postgres-transactions", doctor.OK, fmt.Sprintf("no transaction has been open for %v", x.old), "", "")
	}
	return nil
}

// seconds are those of milliseconds, rounded.
func seconds(ms int64) time.Duration {
	return (time.Duration(ms) * time.Millisecond).Round(time.Second)
}

// prepared are transactions that wait for a coordinator.
func (x *examination) prepared(ctx context.Context) error {
	rows, err := x.pool.Query(ctx, x.text("prepared"), x.old.Milliseconds())
	if err != nil {
		return err
	}
	var id, owner string
	var n int64
	tag, err := pgx.ForEachRow(rows, []any{&id, &owner, &n}, func() error {
		x.found("postgres-prepared", doctor.Warning, fmt.Sprintf("transaction %q of %s was prepared %v ago, and neither committed nor rolled back", id, owner, seconds(n)),
			"it holds its snapshot and its locks, through restarts too: tables grow, and messages that it has written are not published", "ROLLBACK PREPARED '"+strings.ReplaceAll(id, "'", "''")+"'; or, if its coordinator has committed, COMMIT PREPARED")
		return nil
	})
	if err == nil && tag.RowsAffected() == 0 {
		x.found("postgres-prepared", doctor.OK, "no prepared transaction is left", "", "")
	}
	return err
}

// slots are replication slots that hold back the server's log, or its cleaning up.
func (x *examination) slots(ctx context.Context) error {
	rows, err := x.pool.Query(ctx, x.text("slots"))
	if err != nil {
		return err
	}
	fine := true
	say := func(severity doctor.Severity, read, means, fix string) {
		fine = false
		x.found("postgres-slots", severity, read, means, fix)
	}
	unbounded := x.settings["max_slot_wal_keep_size"] == "-1"
	var name, status string
	var active, rowsHeld bool
	var kept int64
	_, err = pgx.ForEachRow(rows, []any{&name, &active, &status, &rowsHeld, &kept}, func() error {
		drop := "SELECT pg_drop_replication_slot('" + strings.ReplaceAll(name, "'", "''") + "');"
		means := "what it keeps of the log fills the disk in the end, and a full disk stops the database"
		if !unbounded {
			means = "it keeps the log up to max_slot_wal_keep_size"
		}
		if rowsHeld {
			means += "; it holds removed rows back too: tables grow"
		}
		read := fmt.Sprintf("slot %s: active = %v, keeps %d MiB of the log", name, active, kept>>20)
		switch {
		case status == "lost":
			say(doctor.Note, fmt.Sprintf("slot %s: wal_status = lost", name), "whoever read it has to begin anew", drop)
		case !active && unbounded:
			say(doctor.Warning, read, means, drop+" if nobody will read it; or "+alterSystem("max_slot_wal_keep_size = '10GB'"))
		case !active || kept > muchLog && unbounded:
			say(doctor.Note, read, means, "let its reader catch up, or "+drop)
		}
		return nil
	})
	if err == nil && fine {
		x.found("postgres-slots", doctor.OK, "no replication slot holds anything back", "", "")
	}
	return err
}

// replicas say what a fail-over takes back.
func (x *examination) replicas(ctx context.Context) error {
	rows, err := x.pool.Query(ctx, x.text("standbys"))
	if err != nil {
		return err
	}
	var name, state string
	hidden := false
	_, err = pgx.ForEachRow(rows, []any{&name, &state}, func() error {
		x.standbys++
		switch state {
		case "sync", "quorum":
			x.sync++
		case "":
			hidden = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	wanted, commit := x.settings["synchronous_standby_names"], x.settings["synchronous_commit"]
	read := fmt.Sprintf("synchronous_standby_names = '%s', standbys connected: %d, synchronous: %d", wanted, x.standbys, x.sync)
	found := func(s doctor.Severity, means, fix string) { x.found("postgres-replicas", s, read, means, fix) }
	switch {
	case hidden && !x.sees:
		read = fmt.Sprintf("synchronous_standby_names = '%s', standbys connected: %d; this user may not see which are synchronous", wanted, x.standbys)
		found(doctor.Unknown, "", "GRANT pg_read_all_stats TO "+pgx.Identifier{x.user}.Sanitize()+";")
	case wanted != "" && x.sync == 0:
		found(doctor.Warning, "commits wait for a standby that is not there: services stand still, unless they commit with synchronous_commit local or off", "start the standby, or "+alterSystem("synchronous_standby_names = ''"))
	case wanted == "" && x.publish == Replicated:
		found(doctor.Unsafe, "database.publish_when is replicated, and no standby is synchronous: nothing is published", alterSystem("synchronous_standby_names = 'ANY 1 (standby1)'"))
	case wanted == "" && x.standbys > 0:
		found(doctor.Note, "a standby that is promoted may lack the newest commits, and messages published from them have no row any more", alterSystem("synchronous_standby_names = 'ANY 1 (*)'")+" and database.publish_when: replicated")
	case wanted == "":
		found(doctor.Note, "a commit is on this server alone: what its disk loses is lost", "")
	case commit == "local" || commit == "off":
		found(doctor.Note, "there are synchronous standbys, and commits of this user do not wait for them (synchronous_commit = "+commit+")", alterSystem("synchronous_commit = on"))
	default:
		found(doctor.OK, "", "")
	}
	return nil
}

// worth is what a commit survives.
func (x *examination) worth() string {
	d := &x.d
	switch {
	case d.Has("postgres-primary", doctor.Unsafe) || d.Has("postgres-encoding", doctor.Unsafe) || d.Has("postgres-version", doctor.Unsafe):
		return "nothing: a relay refuses this server"
	case d.Has("postgres-fsync", doctor.Unsafe) || d.Has("postgres-full-page-writes", doctor.Unsafe):
		return "a commit survives the end of the server's process, and not a crash of its machine"
	case d.Has("postgres-logged", doctor.Unsafe):
		return "a commit's messages survive a shutdown in good order, and no crash"
	case d.Has("postgres-synchronous-commit", doctor.Warning):
		return "a commit that did not wait for the disk is forgotten in a crash; others survive it"
	case x.sync > 0 && !d.Has("postgres-replicas", doctor.Note):
		return fmt.Sprintf("a commit survives the loss of this server: it is on the disks of synchronous standbys as well (%d connected)", x.sync)
	case x.standbys > 0:
		return "a commit survives a crash of this server; a fail-over to a standby may lose the newest ones"
	}
	return "a commit survives a crash and a power loss of this server, and not the loss of its disk"
}
