package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/redis"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// Messages go from PostgreSQL to a stream, in order and through the fence; what has a key in its way that is no stream is a dead
// letter, and requeued once the key is gone it arrives.
func TestRelayPublishesToRedis(t *testing.T) {
	t.Parallel()
	url := os.Getenv("ONWARD_TEST_REDIS_URL")
	if url == "" {
		t.Skip(`ONWARD_TEST_REDIS_URL is not set: start the server with: dev/services up redis && eval "$(dev/services env)"`)
	}
	o, err := goredis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(o)
	name := fmt.Sprintf("cli-%d", time.Now().UnixNano())
	stream, lost := name+".paid", name+".lost"
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Set(t.Context(), lost, "no stream", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	d := newDatabase(t)
	c := d.console
	c.environ = append(append([]string{}, c.environ...), "ONWARD_SINKS__0__NAME=orders", "ONWARD_SINKS__0__URL="+url, "ONWARD_SINKS__0__REDIS__FENCE="+name)
	r := c.start(t, "relay")
	for n := range 5 {
		d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ($1, 'order-1', 'T', convert_to($2, 'UTF8'))`, stream, fmt.Sprint(n))
	}
	eventually(t, "the messages arrive", func() bool { return client.XLen(t.Context(), stream).Val() >= 5 })
	for n, m := range client.XRange(t.Context(), stream, "-", "+").Val() {
		if m.Values[redis.PayloadField] != fmt.Sprint(n) || m.Values["onward-key"] != "order-1" || m.Values["onward-id"] == "" {
			t.Errorf("entry %d is %v", n, m.Values)
		}
	}
	if keys := client.Keys(t.Context(), "onward:fence:"+name+":*").Val(); len(keys) != 1 {
		t.Errorf("fences of one partition: %v", keys)
	}

	d.exec(t, `INSERT INTO outbox_messages (topic, partition_key, type, payload) VALUES ($1, 'other', 'T', 'hello')`, lost)
	eventually(t, "what cannot go there is a dead letter", func() bool {
		return strings.Contains(d.run(t, "dead", "list", "-o", "json").out, `"code": "onward/unroutable"`)
	})
	if err := client.Del(t.Context(), lost).Err(); err != nil {
		t.Fatal(err)
	}
	if got := d.run(t, "dead", "requeue", "--yes", "--code", "onward/unroutable"); got.code != exitDone {
		t.Errorf("requeue: %+v", got)
	}
	eventually(t, "it arrives", func() bool { return client.XLen(t.Context(), lost).Val() == 1 })
	if code := r.end(t); code != exitDone {
		t.Errorf("code %d; it said\n%s", code, r.said())
	}
	client.Del(t.Context(), stream, lost)
}

func TestRedisIsReachedAsItsSettingsSay(t *testing.T) {
	t.Parallel()
	load := func(set ...string) (*config.Config, error) {
		return config.Load(config.Source{Need: config.NeedRelay, Set: append([]string{"database.url=postgres://u@h/x", "sinks[0].name=s"}, set...)})
	}
	c, err := load("sinks[0].url=rediss://h:1/2", "sinks[0].redis.max_len=7", "sinks[0].redis.exact_trim=true", "sinks[0].redis.fence=shop", "sinks[0].redis.fence_for=2m",
		"sinks[0].redis.wait_aof=true", "sinks[0].publish_timeout=7s", "sinks[0].topic_template={{.Scope}}")
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%+v", redisConfig(c.Sinks[0]))
	want := fmt.Sprintf("%+v", redis.Config{MaxLen: 7, ExactTrim: true, Fence: "shop", FenceFor: 2 * time.Minute, WaitAOF: true, AckTimeout: 7 * time.Second, Wire: broker.WireConfig{Format: "raw", Topic: "{{.Scope}}"}})
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if c, err = load("sinks[0].url=redis://h", "sinks[0].redis.max_age=48h"); err != nil || redisConfig(c.Sinks[0]).MaxAge != 48*time.Hour {
		t.Errorf("max_age: %+v, %v", c, err)
	}
	_, err = load("sinks[0].url=redis://u:geheim@h/x", "sinks[0].redis.max_len=-1", "sinks[0].redis.max_age=1ms", "sinks[0].redis.fence=A b", "sinks[0].redis.fence_for=1s", "sinks[0].key_template=k")
	for _, word := range []string{"cannot be read", "max_len", "max_age: is 1ms", `fence: "A b"`, "fence_for", "key_template"} {
		if err == nil || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%q is not in: %v", word, err)
		}
	}
	if _, err = load("sinks[0].url=redis://h", "sinks[0].redis.max_len=7", "sinks[0].redis.max_age=1h"); err == nil || !strings.Contains(err.Error(), "are both set") {
		t.Errorf("two ways to trim: %v", err)
	}
	if _, err = load("sinks[0].url=discard:", "sinks[0].redis.fence=shop"); err == nil || !strings.Contains(err.Error(), "is for redis") {
		t.Errorf("a block of another broker: %v", err)
	}
}
