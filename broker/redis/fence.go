package redis

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/onwardhq/onward/broker"
)

var fenceName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// fenced is XADD for an owner that no later one has published after. KEYS: the fence of the partition, the stream. ARGV: who
// publishes, for how many milliseconds that is remembered, and what follows the stream in XADD.
const fenced = `local last = redis.call('GET', KEYS[1])
if last and last > ARGV[1] then return redis.error_reply('STALEOWNER ' .. last) end
local id = redis.call('XADD', KEYS[2], unpack(ARGV, 3))
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return id`

// fenceKey is where the server keeps the last owner of a partition.
func fenceKey(name string, partition int) string {
	return "onward:fence:" + name + ":" + strconv.Itoa(partition)
}

// owner is a text that is greater the later the owner: first the database's numbering, which a restored database begins anew,
// then the epoch. Lua's numbers are too small for it.
func owner(e *broker.Envelope) string {
	lineage, _ := strconv.ParseUint(e.Lineage, 10, 63)
	return fmt.Sprintf("%020d:%020d", lineage, max(0, e.Epoch))
}

// isStale reports whether an answer is that of fenced.
func isStale(err error) bool { return strings.HasPrefix(err.Error(), "STALEOWNER ") }
