package config

import (
	"regexp"
	"time"
)

// Redis is what only Redis needs.
type Redis struct {
	MaxLen    int           `key:"max_len" default:"0" note:"trim each stream to about that many entries, read or not; 0: not"`
	MaxAge    time.Duration `key:"max_age" default:"0s" note:"trim entries that are older, read or not; 0: not; not together with max_len"`
	ExactTrim bool          `key:"exact_trim" default:"false" note:"trim to the entry; false: whole nodes of about 100, which costs the server less"`
	Fence     string        `key:"fence" note:"a name of this sink and its database, which no other has at the server: it refuses a relay that no longer owns its partition"`
	FenceFor  time.Duration `key:"fence_for" default:"1h" note:"how long the server remembers the owner of a partition"`
	WaitAOF   bool          `key:"wait_aof" default:"false" note:"a message is taken once it is on the server's disk, whatever its appendfsync; needs Redis 7.2"`
}

// usualRedis is a block that nobody wrote.
var usualRedis = Redis{FenceFor: time.Hour}

var fenceName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// IsRedis reports whether the URL leads to Redis.
func (s *Sink) IsRedis() bool { return s.Scheme() == "redis" || s.Scheme() == "rediss" }

// redis checks what a sink says of Redis.
func (k *checker) redis(path string, s *Sink) {
	c := &s.Redis
	path += ".redis"
	k.that(s.IsRedis() || *c == usualRedis || s.URL == "", path, "is for redis: the sink's url is another broker's")
	atLeast(k, path+".max_len", c.MaxLen, 0)
	k.that(c.MaxAge == 0 || c.MaxAge >= time.Second, path+".max_age", "is %s, the least is 1s", c.MaxAge)
	k.that(c.MaxLen == 0 || c.MaxAge == 0, path+".max_age", "and max_len are both set: the server trims by one of them")
	k.that(c.Fence == "" || fenceName.MatchString(c.Fence), path+".fence", "%q is not 1 to 64 of a-z, 0-9, _ and -", c.Fence)
	atLeast(k, path+".fence_for", c.FenceFor, time.Minute)
}
