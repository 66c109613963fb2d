package house

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// WriteProxy fills the folder dir so that GOPROXY=file://dir serves these modules at the version, as a release of the work
// tree would: files that git ignores are left out.
func WriteProxy(ctx context.Context, dir, version string, modules []Module) error {
	for _, m := range modules {
		if err := writeVersion(ctx, dir, version, m); err != nil {
			return fmt.Errorf("serve %s@%s from a folder: %w", m.Path, version, err)
		}
	}
	return nil
}

// writeVersion writes the four files that the go command asks a proxy for (https://go.dev/ref/mod#goproxy-protocol).
func writeVersion(ctx context.Context, dir, version string, m Module) error {
	escaped, err := module.EscapePath(m.Path)
	if err != nil {
		return err
	}
	versions := filepath.Join(dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(versions, 0o755); err != nil {
		return err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, time.Now().UTC()})
	if err != nil {
		return err
	}
	packed, err := pack(ctx, version, m)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"list":            []byte(version + "\n"),
		version + ".info": info,
		version + ".mod":  modfile.Format(m.File.Syntax),
		version + ".zip":  packed,
	} {
		if err := os.WriteFile(filepath.Join(versions, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func pack(ctx context.Context, version string, m Module) ([]byte, error) {
	names, err := trackedFiles(ctx, m.Dir)
	if err != nil {
		return nil, err
	}
	var files []zip.File
	for _, name := range names {
		if inNestedModule(m.Dir, name) {
			continue
		}
		files = append(files, diskFile{dir: m.Dir, name: name})
	}
	var packed bytes.Buffer
	if err := zip.Create(&packed, module.Version{Path: m.Path, Version: version}, files); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// trackedFiles lists what git has, or would add, below dir.
func trackedFiles(ctx context.Context, dir string) ([]string, error) {
	git := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	git.Dir = dir
	var words bytes.Buffer
	git.Stderr = &words
	listed, err := git.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w: %s", err, words.String())
	}
	var names []string
	for name := range strings.SplitSeq(strings.TrimSuffix(string(listed), "\x00"), "\x00") {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil { // a deleted file is listed until that is committed
			names = append(names, name)
		}
	}
	return names, nil
}

// inNestedModule tells whether a folder between dir and the file has a go.mod of its own.
func inNestedModule(dir, name string) bool {
	for at := filepath.Dir(name); at != "."; at = filepath.Dir(at) {
		if _, err := os.Lstat(filepath.Join(dir, at, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// diskFile is one file of a module.
type diskFile struct{ dir, name string }

// Path is the name inside the module, with slashes.
func (f diskFile) Path() string { return filepath.ToSlash(f.name) }

// Lstat describes the file on disk.
func (f diskFile) Lstat() (os.FileInfo, error) { return os.Lstat(filepath.Join(f.dir, f.name)) }

// Open reads the file on disk.
func (f diskFile) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(f.dir, f.name)) }
