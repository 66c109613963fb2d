// Package house knows the house itself: its modules, and how to serve them as if they were released. Its tests say which
// module may import what, and that each of them can be had from outside the workspace.
package house

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/modfile"
)

// A Module is one module of the workspace.
type Module struct {
	// Path is its module path.
	Path string
	// Dir is its folder, absolute.
	Dir string
	// File is its go.mod.
	File *modfile.File
}

// Modules reads go.work in the folder root, and the go.mod of each module that it uses, in its order.
func Modules(root string) ([]Module, error) {
	path := filepath.Join(root, "go.work")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the workspace: %w", err)
	}
	work, err := modfile.ParseWork(path, text, nil)
	if err != nil {
		return nil, fmt.Errorf("read the workspace: %w", err)
	}
	modules := make([]Module, 0, len(work.Use))
	for _, use := range work.Use {
		module, err := readModule(filepath.Join(root, filepath.FromSlash(use.Path)))
		if err != nil {
			return nil, err
		}
		modules = append(modules, module)
	}
	return modules, nil
}

func readModule(dir string) (Module, error) {
	path := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(path)
	if err != nil {
		return Module{}, fmt.Errorf("read a module: %w", err)
	}
	file, err := modfile.Parse(path, text, nil)
	if err != nil {
		return Module{}, fmt.Errorf("read a module: %w", err)
	}
	return Module{Path: file.Module.Mod.Path, Dir: dir, File: file}, nil
}
