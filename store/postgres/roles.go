package postgres

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/onwardhq/onward/outbox"
)

// Roles are the names of the roles that the grants give rights to. Roles belong to the whole server: two outboxes whose
// services must not write into each other need roles of their own. Any name that PostgreSQL takes will do.
type Roles struct {
	Producer string // services: write messages; default onward_producer
	Relay    string // relays: read the log, keep cursors, park, make dead letters; default onward_relay
	Admin    string // people who repair: see everything, requeue, discard; default onward_admin
	Viewer   string // people who look, payloads included; default onward_viewer
}

// shippedRoles are the names in grants.sql.
var shippedRoles = Roles{Producer: "onward_producer", Relay: "onward_relay", Admin: "onward_admin", Viewer: "onward_viewer"}

func (r Roles) list() [4]string { return [4]string{r.Producer, r.Relay, r.Admin, r.Viewer} }

// validate refuses what would break out of a line of printed SQL.
func (r Roles) validate() error {
	for _, name := range r.list() {
		if strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }) || len(name) > 63 {
			return &outbox.Error{
				Code: outbox.ErrIdentifierInvalid.Code, Op: "postgres configuration", Detail: fmt.Sprintf("role %.80q", name),
				Hint: "a role's name has at most 63 bytes and no control characters",
			}
		}
	}
	return nil
}

// in puts the roles into grants.sql.
func (r Roles) in(text string) string {
	var pairs []string
	for i, name := range r.list() {
		if shipped := shippedRoles.list()[i]; name != "" && name != shipped {
			pairs = append(pairs, shipped, pgx.Identifier{name}.Sanitize())
		}
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
