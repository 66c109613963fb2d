package nats

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/brokertest"
)

// newCluster starts three servers that know each other.
func newCluster(t *testing.T) []*server {
	t.Helper()
	servers := make([]*server, 3)
	routes := make([]string, 3)
	ports := make([]int, 3)
	for i := range servers {
		servers[i], ports[i] = prepareServer(t, ""), freePort()
		routes[i] = fmt.Sprintf("nats://127.0.0.1:%d", ports[i])
	}
	for i, s := range servers {
		s.extra = fmt.Sprintf("server_name: n%d\ncluster { name: c, listen: \"127.0.0.1:%d\", routes: [%s] }\njetstream { store_dir: %q }",
			i, ports[i], strings.Join(routes, ", "), filepath.Join(s.dir, "data"))
		s.launch()
	}
	for _, s := range servers {
		s.await()
	}
	return servers
}

// inProcessOnACluster: a leader without followers proposes a message and cannot finish; its second copy meets API error
// 10158; once the followers are back the first copy is stored, and the third try is told so.
func inProcessOnACluster(t *testing.T) {
	servers := newCluster(t)
	urls := servers[0].url() + "," + servers[1].url() + "," + servers[2].url()
	b := newBench(t, urls, func(c *jetstream.StreamConfig) { c.Replicas, c.Storage = 3, jetstream.FileStorage })
	leader, followers := b.leader(servers)
	at := *b
	at.url = leader.url() // the publisher stays with the leader
	p := at.publisher(Config{AckTimeout: 500 * time.Millisecond})
	want(t, publish(t, t.Context(), p, message(b.topic, ""))[0], taken)
	for _, f := range followers {
		f.freeze()
	}
	m := message(b.topic, "")
	want(t, publish(t, t.Context(), p, m)[0], noAnswer)
	want(t, publish(t, t.Context(), p, m)[0], inProcess)
	for _, f := range followers {
		f.thaw()
	}
	until(t, "the message is published", func() bool {
		r := publish(t, t.Context(), p, m)[0]
		if r.Outcome == broker.Retry || r.Outcome == broker.Rejected {
			t.Fatalf("a sound message was answered %s: %v", r.Outcome, r.Err)
		}
		return r.Outcome == broker.Duplicate
	})
	until(t, "each message is stored once", func() bool { return b.count() == 2 })
}

// leader finds the stream's leader among the servers.
func (b *bench) leader(servers []*server) (leader *server, followers []*server) {
	b.tb.Helper()
	until(b.tb, "the stream has a leader and followers", func() bool {
		s, err := b.js.Stream(b.context(), b.stream)
		if err != nil || s.CachedInfo().Cluster == nil || s.CachedInfo().Cluster.Leader == "" {
			return false
		}
		for _, r := range s.CachedInfo().Cluster.Replicas {
			if !r.Current {
				return false
			}
		}
		leader, followers = nil, nil
		for i, one := range servers {
			if s.CachedInfo().Cluster.Leader == fmt.Sprintf("n%d", i) {
				leader = one
			} else {
				followers = append(followers, one)
			}
		}
		return leader != nil
	})
	return leader, followers
}

// A stream whose leader is killed goes on with another one: nothing is refused, nothing is lost, keys stay in order.
func TestTheLeaderOfTheStreamIsKilled(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	urls := servers[0].url() + "," + servers[1].url() + "," + servers[2].url()
	b := newBench(t, urls, func(c *jetstream.StreamConfig) { c.Replicas, c.Storage = 3, jetstream.FileStorage })
	leader, _ := b.leader(servers)
	p := b.dialed(Options{})
	l := brokertest.StartLoad(t, p, b.topic, patience)
	l.Await(50)
	leader.kill()
	l.Await(50)
	l.Stop()
	l.Arrived(b.read)
}
