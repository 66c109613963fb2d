package house

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// release is the version at which each go.mod requires its siblings.
const release = "v0.1.0"

// outside is a folder that knows nothing of the workspace, and a proxy that serves our modules as released.
type outside struct {
	dir string
	env []string
}

func newOutside(t *testing.T, modules []Module) outside {
	t.Helper()
	proxy, cache := t.TempDir(), t.TempDir()
	if err := WriteProxy(t.Context(), proxy, release, modules); err != nil {
		t.Fatal(err)
	}
	// The module cache is this test's own: ours must come from the proxy of this run. What others publish was mostly
	// downloaded already; checksums of that are the business of `go mod verify`, not of this test. Without -trimpath packages
	// would be compiled anew for each folder that they are in.
	downloaded := filepath.Join(goEnv(t, "GOMODCACHE"), "cache", "download")
	return outside{dir: t.TempDir(), env: append(os.Environ(),
		"GOWORK=off", "GOFLAGS=-mod=mod -modcacherw -trimpath", "GOSUMDB=off", "GOPRIVATE=", "GONOPROXY=",
		"GOMODCACHE="+cache, "GOBIN="+t.TempDir(),
		"GOPROXY=file://"+proxy+",file://"+downloaded+","+goEnv(t, "GOPROXY"),
	)}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	value, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}

// run runs a command out there, and returns what it printed.
func (o outside) run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, name, args...)
	command.Dir, command.Env = o.dir, o.env
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// bin is the path of a program that was installed out there.
func (o outside) bin(name string) string {
	var dir string
	for _, pair := range o.env {
		if value, found := strings.CutPrefix(pair, "GOBIN="); found {
			dir = value
		}
	}
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(dir, name)
}

// released are the modules of the workspace that people can have.
func released(t *testing.T) []Module {
	t.Helper()
	var modules []Module
	for _, module := range workspace(t) {
		if name := below(module.Path); name != "e2e" && !strings.HasPrefix(name, "examples/") {
			modules = append(modules, module)
		}
	}
	return modules
}

// importablePackages lists the packages of a module that outsiders may import.
func importablePackages(t *testing.T, module Module) []string {
	t.Helper()
	list := exec.Command("go", "list", "-f", "{{if ne .Name \"main\"}}{{.ImportPath}}{{end}}", "./...")
	list.Dir = module.Dir
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, path := range strings.Fields(string(out)) {
		if !strings.Contains(path+"/", "/internal/") {
			paths = append(paths, path)
		}
	}
	return paths
}

func TestEachModuleCanBeHadFromOutsideTheWorkspace(t *testing.T) {
	t.Parallel()
	modules := released(t)
	o := newOutside(t, modules)
	o.run(t, "go", "mod", "init", "example.com/consumer")
	var program bytes.Buffer
	program.WriteString("package main\n\nimport (\n")
	for _, module := range modules {
		o.run(t, "go", "get", module.Path+"@"+release)
		for _, path := range importablePackages(t, module) {
			program.WriteString("\t_ \"" + path + "\"\n")
		}
	}
	program.WriteString(")\n\nfunc main() {}\n")
	if err := os.WriteFile(filepath.Join(o.dir, "main.go"), program.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o.run(t, "go", "build", "-o", os.DevNull, ".")
}

func TestTheProgramInstallsFromOutsideTheWorkspace(t *testing.T) {
	t.Parallel()
	modules := released(t)
	o := newOutside(t, modules)
	o.run(t, "go", "install", Root+"/cmd/onward@"+release)
	if out := o.run(t, o.bin("onward"), "version"); !strings.Contains(out, release) {
		t.Errorf("onward version prints %q, want %s in it", out, release)
	}
}
