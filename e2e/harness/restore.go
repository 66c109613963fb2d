package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Archived is the settings of a server that archives its log in a folder, which every user may write to.
func Archived(folder string) ([]string, error) {
	if err := os.Chmod(folder, 0o777); err != nil { //nolint:gosec // a test's own; the server runs as another user
		return nil, err
	}
	return []string{"archive_mode=on", fmt.Sprintf("archive_command=cp %%p %s/%%f", folder)}, nil
}

// Backup is a base backup: it can be restored any number of times.
type Backup struct{ data string }

// TakeBackup takes a base backup of a server that runs into dir, with the log that it needs.
func TakeBackup(dir, server string) (Backup, error) {
	if _, err := newPostgres(dir, nil, "pg_basebackup", "-d", server, "-c", "fast", "-X", "stream"); err != nil {
		return Backup{}, err
	}
	return Backup{data: filepath.Join(dir, "data")}, nil
}

// Restore makes another server of the backup in dir, as it was when the backup ended.
func (b Backup) Restore(dir string, settings ...string) (*Server, error) {
	bin, attr, err := postgresIn(dir)
	if err != nil {
		return nil, err
	}
	if err := runAs(attr, dir, "cp", "-a", b.data, filepath.Join(dir, "data")); err != nil {
		return nil, err
	}
	return postgresOn(dir, bin, attr, settings)
}

// RestoreTo makes another server of the backup in dir, which goes through the archived log until a time, and is then a primary.
func (b Backup) RestoreTo(dir, archive string, target time.Time, settings ...string) (*Server, error) {
	settings = append(settings, fmt.Sprintf("restore_command=cp %s/%%f %%p", archive), "recovery_target_action=promote",
		"recovery_target_time="+target.UTC().Format("2006-01-02 15:04:05.999999+00"))
	s, err := b.Restore(dir, settings...)
	if err != nil {
		return nil, err
	}
	signal := filepath.Join(dir, "data", "recovery.signal")
	if err := os.WriteFile(signal, nil, 0o600); err != nil {
		return nil, err
	}
	return s, os.Chmod(signal, 0o666) //nolint:gosec // the server, another user, opens it for writing
}
