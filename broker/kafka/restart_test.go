package kafka

import (
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// One after the other of three brokers is killed under load, each of them the leader of some partitions, and comes back: two that are
// in sync go on taking messages. Everything arrives, first copies in order: batches that a leader had no time to answer go to the
// next one under the same numbers.
func TestAnyOfThreeBrokersMayDieUnderLoad(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	c.third(t)
	b := prepareBench(t, c.url())
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = b.topic, -1, -1
	for partition, replicas := range [][]int32{{2, 3, 1}, {3, 1, 2}, {2, 1, 3}, {3, 2, 1}} {
		place := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		place.Partition, place.Replicas = int32(partition), replicas
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, place)
	}
	b.make(topic, "min.insync.replicas=2")
	l := b.load(b.publisher(Config{}), 20)
	l.await(1000)
	for _, id := range []int{2, 3} {
		c.nodes[id].kill()
		l.await(1000) // the two others
		c.start(t, id)
		c.await(t, 3)
		l.await(1000)
	}
	twice := l.end()
	t.Logf("%d published, %d answers that were none, %d came twice", l.published.Load(), l.failed.Load(), twice)
}

// The only broker is killed, and then stopped, under load and started again: what was acknowledged is there.
func TestABrokerThatIsRestartedUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	b := c.bench(t, []int32{2})
	l := b.load(b.publisher(Config{}), 20)
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		l.await(1000)
		n := c.nodes[2]
		_ = n.command.Process.Signal(signal)
		<-n.exited
		c.start(t, 2)
		c.await(t, 2)
	}
	l.await(1000)
	twice := l.end()
	t.Logf("%d published, %d answers that were none, %d came twice", l.published.Load(), l.failed.Load(), twice)
}
