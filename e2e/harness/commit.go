package harness

import (
	"os/exec"
	"strings"
)

// Commit is the source's, as git knows it, with + behind it where files that git knows are changed; "unknown" without git.
func Commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output() //nolint:noctx // it takes no time
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	if changed, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err != nil || len(changed) > 0 { //nolint:noctx // nor does this
		name += "+"
	}
	return name
}
