package kafka

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Options say how to reach a cluster.
type Options struct {
	// Name is the client's id, as the brokers' logs, metrics and quotas have it. Empty: onward.
	Name string
	// TLS is how to speak TLS with every broker; nil: not at all.
	TLS *tls.Config
	// SASL is how to sign in: plain, scram-sha-256 or scram-sha-512 with the URL's user and password, or oauthbearer with
	// Token. Empty: not at all.
	SASL string
	// Token returns a token for oauthbearer. It is asked for each connection, and again before a token ends.
	Token func(ctx context.Context) (string, error)
	// More are further options of franz-go, which win over those above.
	More []kgo.Opt
}

// Mechanisms are the words that Options.SASL takes.
func Mechanisms() []string { return []string{"plain", "scram-sha-256", "scram-sha-512", "oauthbearer"} }

// Address is what a URL says.
type Address struct {
	Brokers        []string // host:port
	User, Password string
}

// ParseURL reads kafka://user:password@host:port,host:port. A port that is missing is 9092. Special characters of user and
// password are written as %40 and the like. Errors do not repeat the password.
func ParseURL(text string) (Address, error) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(text), "kafka://")
	if !ok {
		return Address{}, fmt.Errorf("the address does not begin with kafka://")
	}
	var a Address
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		u, err := url.Parse("kafka://" + rest[:i] + "@host")
		if err != nil || u.User == nil || u.Host != "host" || strings.ContainsAny(rest[:i], "@,") {
			return Address{}, fmt.Errorf("user and password cannot be read: write special characters as %%40 and the like")
		}
		a.User = u.User.Username()
		a.Password, _ = u.User.Password()
		rest = rest[i+1:]
	}
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		if rest[i:] != "/" {
			return Address{}, fmt.Errorf("a path or query is not taken: settings go beside the address")
		}
		rest = rest[:i]
	}
	for one := range strings.SplitSeq(rest, ",") {
		host, port, err := splitHost(strings.TrimSpace(one))
		if err != nil {
			return Address{}, err
		}
		a.Brokers = append(a.Brokers, net.JoinHostPort(host, port))
	}
	return a, nil
}

func splitHost(one string) (host, port string, err error) {
	u, err := url.Parse("kafka://" + one)
	if err != nil || u.User != nil || u.Hostname() == "" || u.Path != "" {
		return "", "", fmt.Errorf("%q is no host and port: write kafka://host:9092,host:9092", one)
	}
	if port = u.Port(); port == "" {
		port = "9092"
	}
	return u.Hostname(), port, nil
}

// Connect makes a client that connects when it has something to send. More addresses in the URL are brokers to begin with; the
// others are learnt from them. The caller closes the client.
func Connect(address string, o Options) (*kgo.Client, error) {
	a, err := ParseURL(address)
	if err != nil {
		return nil, invalid("connect to kafka", []string{err.Error()})
	}
	mechanism, faults := o.mechanism(a)
	if len(faults) > 0 {
		return nil, invalid("connect to kafka", faults)
	}
	name := o.Name
	if name == "" {
		name = "onward"
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(a.Brokers...), kgo.ClientID(name), kgo.DisableClientMetrics(),
		kgo.DialTimeout(5 * time.Second), kgo.RequestTimeoutOverhead(5 * time.Second),
		kgo.RequestRetries(1), kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	}
	if o.TLS != nil {
		options = append(options, kgo.DialTLSConfig(o.TLS))
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	client, err := kgo.NewClient(append(options, o.More...)...)
	if err != nil {
		return nil, invalid("connect to kafka", []string{err.Error()})
	}
	return client, nil
}

// mechanism is how to sign in, and what is wrong with it.
func (o Options) mechanism(a Address) (m sasl.Mechanism, faults []string) {
	switch {
	case o.SASL == "" && a.User != "":
		return nil, []string{"the address has a user, and SASL is empty: want one of " + strings.Join(Mechanisms(), ", ")}
	case o.SASL == "":
		return nil, nil
	case !slices.Contains(Mechanisms(), o.SASL):
		return nil, []string{fmt.Sprintf("SASL is %q: want one of %s", o.SASL, strings.Join(Mechanisms(), ", "))}
	case o.SASL == "oauthbearer" && o.Token == nil:
		return nil, []string{"SASL is oauthbearer, and there is no Token"}
	case o.SASL == "oauthbearer":
		return oauth.Oauth(func(ctx context.Context) (oauth.Auth, error) {
			token, err := o.Token(ctx)
			return oauth.Auth{Token: token}, err
		}), nil
	case a.User == "" || a.Password == "":
		return nil, []string{"SASL is " + o.SASL + ", and the address has no user and password"}
	}
	switch o.SASL {
	case "scram-sha-256":
		return scram.Auth{User: a.User, Pass: a.Password}.AsSha256Mechanism(), nil
	case "scram-sha-512":
		return scram.Auth{User: a.User, Pass: a.Password}.AsSha512Mechanism(), nil
	}
	return plain.Auth{User: a.User, Pass: a.Password}.AsMechanism(), nil
}
