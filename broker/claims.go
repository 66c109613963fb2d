package broker

import (
	"context"

	"github.com/onwardhq/onward/outbox"
)

// CodeUnclaimed is that of a message whose partition the publisher has not claimed, or which somebody else has claimed since.
// The outcome is Throttled: nothing was sent, and the relay claims the partition before it publishes the message again.
const CodeUnclaimed outbox.Code = "onward/partition-unclaimed"

// Published names a message that was published.
type Published struct {
	Partition int // of the outbox
	ID        outbox.ID
}

// Claimer is a publisher that stores each message once, whoever publishes it, because one process alone can publish the
// messages of a partition, and knows which of them are published and not settled. The relay calls it where Capabilities say
// Claims.
type Claimer interface {
	// Claim makes the publisher the one that publishes the messages of these partitions of the outbox: when it returns nil,
	// nothing that another one has sent of them becomes visible any more. Then the relay asks the database once more whether
	// it still owns them, and only then hands over their messages: a claim that comes late, of a process that slept, takes the
	// place of the present owner's, and must not be used. Whoever loses a claim answers Throttled, with CodeUnclaimed.
	Claim(ctx context.Context, partitions []int) error
	// Settled says that the database knows these messages as published, so that the publisher need not know them any longer.
	// A second copy of one is stored again from then on. It returns at once.
	Settled(messages []Published)
}
