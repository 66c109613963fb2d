package postgres

import (
	"embed"
	"path"
	"strconv"
	"strings"
)

//go:embed queries/session/*.sql
var sessionFiles embed.FS

// sessionStatement is the file of this name in this outbox's names. A line "--:name" stands for the file name.sql. Limits
// are literals, so that generic plans know them: :page is the page, :more one row more.
func sessionStatement(n names, name string, page int) string {
	return n.sql(strings.NewReplacer(":page", strconv.Itoa(page), ":more", strconv.Itoa(page+1)).Replace(sessionFile(name)))
}

func sessionFile(name string) string {
	text, err := sessionFiles.ReadFile(path.Join("queries/session", name+".sql"))
	if err != nil {
		panic(err) // a name in this package that its own files do not have
	}
	return includeLine.ReplaceAllStringFunc(string(text), func(line string) string {
		return sessionFile(strings.TrimPrefix(line, "--:"))
	})
}
