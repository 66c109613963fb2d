package outbox

import (
	"crypto/sha256"
	"encoding/binary"
)

// PartitionOf returns the slice of the outbox that a message belongs to, as the database computes it: the first 4 bytes,
// big-endian, of SHA-256 over the key, or over the id's text where the key is empty, and (partitions - 1). partitions is a
// power of two.
func PartitionOf(key string, id ID, partitions int) int {
	if key == "" {
		key = id.String()
	}
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint32(sum[:4]) & uint32(partitions-1))
}
