package kafka

import (
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// The leader of some partitions is killed under load, and comes back: everything arrives, first copies in order. Batches that it
// had no time to answer go to the next leader under the same numbers.
func TestALeaderThatIsKilledUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	c := theCluster(t)
	b := prepareBench(t, c.url())
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = b.topic, -1, -1
	for partition, replicas := range [][]int32{{1, 2}, {2, 1}, {2, 1}} {
		place := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		place.Partition, place.Replicas = int32(partition), replicas
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, place)
	}
	b.make(topic)
	l := b.load(b.publisher(Config{}), 20)
	l.await(1000)
	c.nodes[2].kill()
	l.await(1000) // the other broker leads
	c.start(t, 2)
	c.await(t, 2)
	l.await(1000)
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
