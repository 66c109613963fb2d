package rabbitmq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/onwardhq/onward/doctor"
)

// management asks the management plugin.
type management struct {
	client         *http.Client
	base           string // with the path up to /api
	user, password string
	vhost          string
}

var errNotThere = errors.New("it does not exist")

// newManagement takes user and password from the address, or else from that of the broker.
func newManagement(address, brokerAddress string) (*management, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("the address cannot be read")
	}
	of, err := amqp.ParseURI(brokerAddress)
	if err != nil {
		return nil, errors.New("the broker's address cannot be read")
	}
	m := &management{vhost: of.Vhost, user: of.Username, password: of.Password}
	if u.User != nil {
		m.user = u.User.Username()
		m.password, _ = u.User.Password()
		u.User = nil
	}
	m.base = strings.TrimSuffix(u.String(), "/") + "/api"
	m.client = &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the password goes nowhere else
	}
	return m, nil
}

// get asks for a path, whose parts are escaped here, and returns when the server says that it is.
func (m *management) get(ctx context.Context, into any, parts ...string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	address := m.base
	for _, part := range parts {
		address += "/" + url.PathEscape(part)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return time.Time{}, errors.New("the address cannot be used")
	}
	request.SetBasicAuth(m.user, m.password)
	response, err := m.client.Do(request)
	if err != nil {
		return time.Time{}, fmt.Errorf("the management plugin does not answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return time.Time{}, errNotThere
	case http.StatusUnauthorized, http.StatusForbidden:
		return time.Time{}, fmt.Errorf("the management plugin refuses user %s: %s", m.user, response.Status)
	default:
		return time.Time{}, fmt.Errorf("the management plugin answers %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 16<<20)).Decode(into); err != nil {
		return time.Time{}, fmt.Errorf("the management plugin's answer cannot be read: %w", err)
	}
	said, _ := http.ParseTime(response.Header.Get("Date"))
	return said, nil
}

// definition is a set of settings; where there is none, the plugin writes an empty list.
type definition map[string]any

// UnmarshalJSON takes an object, and anything else for none.
func (d *definition) UnmarshalJSON(text []byte) error {
	var values map[string]any
	if json.Unmarshal(text, &values) == nil {
		*d = values
	}
	return nil
}

// exchange is what the plugin says of one.
type exchange struct {
	Type       string     `json:"type"`
	Durable    bool       `json:"durable"`
	AutoDelete bool       `json:"auto_delete"`
	Arguments  definition `json:"arguments"`
	Policy     string     `json:"policy"`

	alternate string
	bindings  []binding
	missing   bool
}

type binding struct {
	Destination string `json:"destination"`
	Kind        string `json:"destination_type"` // queue, exchange
	Key         string `json:"routing_key"`
}

// managed reads what only the management plugin says.
func (x *examination) managed(ctx context.Context) {
	var err error
	if x.api, err = newManagement(x.p.cfg.ManagementURL, x.p.dial.urls[0]); err == nil {
		err = x.readManaged(ctx)
	}
	if err != nil {
		x.unmanaged("correct rabbitmq.management_url, or give its user the tag management: " + err.Error())
	}
}

func (x *examination) readManaged(ctx context.Context) error {
	var overview struct{}
	var said, before, after time.Time
	var err error
	for range 2 { // the first answer may take its time
		before = time.Now()
		said, err = x.api.get(ctx, &overview, "overview")
		after = time.Now()
		if err != nil {
			return err
		}
	}
	if !said.IsZero() {
		x.d.Add(doctor.Clock("the server", said, before, after, time.Second))
	}
	for _, a := range x.targets {
		queues, err := x.route(ctx, a, map[string]bool{})
		if err != nil {
			return err
		}
		if len(queues) == 0 && a.exchange != "" {
			x.unroutable(a)
		}
		for _, name := range queues {
			if err := x.queue(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// route are the queues that messages of an address go to. An empty key at an exchange with a name: of any key.
func (x *examination) route(ctx context.Context, a address, passed map[string]bool) (queues []string, err error) {
	if a.exchange == "" {
		return []string{a.key}, nil
	}
	if passed[a.exchange] {
		return nil, nil
	}
	passed[a.exchange] = true
	e, err := x.exchange(ctx, a.exchange)
	if err != nil || e.missing {
		return nil, err
	}
	for _, b := range e.bindings {
		if !e.takes(b.Key, a.key) {
			continue
		}
		if b.Kind == "queue" {
			queues = append(queues, b.Destination)
			continue
		}
		more, err := x.route(ctx, address{b.Destination, a.key}, passed)
		if err != nil {
			return nil, err
		}
		queues = append(queues, more...)
	}
	if len(queues) == 0 && e.alternate != "" {
		return x.route(ctx, address{e.alternate, a.key}, passed)
	}
	return queues, nil
}

// takes reports whether a binding leads on. What an exchange of another kind goes by, headers for example, cannot be known here.
func (e *exchange) takes(pattern, key string) bool {
	switch {
	case key == "":
		return true
	case e.Type == amqp.ExchangeDirect:
		return pattern == key
	case e.Type == amqp.ExchangeTopic:
		return matches(strings.Split(pattern, "."), strings.Split(key, "."))
	}
	return true
}

// matches is AMQP's rule for topics: * is one word, # any number of them.
func matches(pattern, words []string) bool {
	switch {
	case len(pattern) == 0:
		return len(words) == 0
	case pattern[0] == "#":
		return matches(pattern[1:], words) || len(words) > 0 && matches(pattern, words[1:])
	case len(words) == 0:
		return false
	}
	return (pattern[0] == "*" || pattern[0] == words[0]) && matches(pattern[1:], words[1:])
}

// exchange reads one, and says what is to be said of it, once.
func (x *examination) exchange(ctx context.Context, name string) (*exchange, error) {
	if e := x.exchanges[name]; e != nil {
		return e, nil
	}
	e := &exchange{}
	x.exchanges[name] = e
	where := "exchange " + name
	_, err := x.api.get(ctx, e, "exchanges", x.api.vhost, name)
	if errors.Is(err, errNotThere) {
		e.missing = true
		x.found("rabbitmq-exchange", where, doctor.Warning, "it does not exist", "messages for it wait", "rabbitmqadmin declare exchange name="+name+" type=topic durable=true")
		return e, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := x.api.get(ctx, &e.bindings, "exchanges", x.api.vhost, name, "bindings", "source"); err != nil {
		return nil, err
	}
	e.alternate, _ = e.Arguments["alternate-exchange"].(string)
	if e.alternate == "" && e.Policy != "" {
		var policy struct{ Definition definition }
		if _, err := x.api.get(ctx, &policy, "policies", x.api.vhost, e.Policy); err != nil && !errors.Is(err, errNotThere) {
			return nil, err
		}
		e.alternate, _ = policy.Definition["alternate-exchange"].(string)
	}
	if e.Durable && !e.AutoDelete {
		x.found("rabbitmq-exchange-durable", where, doctor.OK, "durable = true, auto_delete = false", "", "")
	} else {
		x.found("rabbitmq-exchange-durable", where, doctor.Warning, fmt.Sprintf("durable = %v, auto_delete = %v", e.Durable, e.AutoDelete), "it goes when its node restarts, or when its last queue does: then messages wait until somebody declares it",
			"make it anew: rabbitmqadmin declare exchange name="+name+" type="+e.Type+" durable=true")
	}
	if e.alternate != "" {
		x.found("rabbitmq-alternate-exchange", where, doctor.Note, "alternate-exchange = "+e.alternate, "a message that no queue of the exchange takes goes there, and counts as published", "watch the queues of "+e.alternate+", or take the alternate exchange away: such messages are dead letters then")
	} else {
		x.found("rabbitmq-alternate-exchange", where, doctor.OK, "there is no alternate-exchange: what no queue takes is returned", "", "")
	}
	return e, nil
}
