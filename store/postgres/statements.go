package postgres

import (
	"embed"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

//go:embed queries/*/*.sql
var queryFiles embed.FS

var includeLine = regexp.MustCompile(`(?m)^--:(\w+)$`)

// queryFile is a file of a folder of queries. A line "--:name" in it stands for the file name.sql of that folder, or for the
// one that instead has for this name.
func queryFile(folder, name string, instead map[string]string) string {
	if other := instead[name]; other != "" {
		name = other
	}
	text, err := queryFiles.ReadFile(path.Join("queries", folder, name+".sql"))
	if err != nil {
		panic(err) // a name in this package that its own files do not have
	}
	return includeLine.ReplaceAllStringFunc(string(text), func(line string) string {
		return strings.TrimSuffix(queryFile(folder, strings.TrimPrefix(line, "--:"), instead), "\n")
	})
}

// queryNames are the files of a folder of queries.
func queryNames(folder string) (names []string) {
	entries, _ := queryFiles.ReadDir(path.Join("queries", folder))
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".sql"))
	}
	return names
}

// sessionStatement is the file of this name in this outbox's names. Limits are literals, so that generic plans know them:
// :page is the page, :more one row more. :settings are those that begin a transaction.
func sessionStatement(n names, name string, page int) string {
	return n.sql(strings.NewReplacer(":page", strconv.Itoa(page), ":more", strconv.Itoa(page+1), ":settings", settings).Replace(sessionFile(name)))
}

var sessionFiles sync.Map // what was read before: string of string

func sessionFile(name string) string {
	text, known := sessionFiles.Load(name)
	if !known {
		text, _ = sessionFiles.LoadOrStore(name, queryFile("session", name, nil))
	}
	return text.(string) //nolint:forcetypeassert // nothing else is there
}
