package kafka

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/onwardhq/onward/broker"
)

// batchOverhead is the size of a record batch without records; recordOverhead what a record can take beside its body:
// length, attributes, and its distance in time and number from the first.
const (
	batchOverhead  = 61
	recordOverhead = 5 + 1 + 10 + 5
)

// appendBody appends what a record is whatever its place in a batch: key, value and headers. An absent key or value is null.
func appendBody(b []byte, out *broker.Outgoing, null bool) []byte {
	if out.Key == "" {
		b = binary.AppendVarint(b, -1)
	} else {
		b = appendText(b, out.Key)
	}
	if null {
		b = binary.AppendVarint(b, -1)
	} else {
		b = binary.AppendVarint(b, int64(len(out.Payload)))
		b = append(b, out.Payload...)
	}
	b = binary.AppendVarint(b, int64(len(out.Headers)))
	for _, h := range out.Headers {
		b = appendText(b, h.Name)
		b = appendText(b, h.Value)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendVarint(b, int64(len(s)))
	return append(b, s...)
}

// sizeAlone is how large a batch with this record alone is, not compressed: what a topic's max.message.bytes is compared with.
func sizeAlone(body []byte) int {
	n := 3 + len(body) // attributes, and twice 0
	var length [binary.MaxVarintLen64]byte
	return batchOverhead + binary.PutVarint(length[:], int64(n)) + n
}

// sequence is where a batch stands in what a producer sends to a partition; the broker stores each place once.
type sequence struct {
	producer int64
	epoch    int16
	first    int32
	inTxn    bool
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode writes flights as one record batch, as Kafka has had them since 0.11.
func encode(flights []*flight, seq sequence, compressor kgo.Compressor) []byte {
	size := 0
	first, latest := flights[0].at, flights[0].at
	for _, f := range flights {
		size += recordOverhead + len(f.body)
		latest = max(latest, f.at)
	}
	b := make([]byte, batchOverhead, batchOverhead+size)
	for i, f := range flights {
		b = appendRecord(b, f.body, f.at-first, i)
	}
	attributes := uint16(0)
	if compressor != nil {
		packed, codec := compressor.Compress(new(bytes.Buffer), b[batchOverhead:])
		if len(packed) < len(b)-batchOverhead {
			b, attributes = append(b[:batchOverhead], packed...), uint16(codec) //nolint:gosec // 0 to 4
		}
	}
	if seq.inTxn {
		attributes |= 1 << 4
	}
	put := binary.BigEndian
	put.PutUint32(b[8:], uint32(len(b)-12)) //nolint:gosec // at most what a topic takes
	put.PutUint32(b[12:], ^uint32(0))       // the leader's epoch is the broker's to say
	b[16] = 2                               // the format
	put.PutUint16(b[21:], attributes)
	put.PutUint32(b[23:], uint32(len(flights)-1)) //nolint:gosec // as are the numbers below
	put.PutUint64(b[27:], uint64(first))          //nolint:gosec // two's complement is the format
	put.PutUint64(b[35:], uint64(latest))         //nolint:gosec // as above
	put.PutUint64(b[43:], uint64(seq.producer))   //nolint:gosec // as above
	put.PutUint16(b[51:], uint16(seq.epoch))      //nolint:gosec // as above
	put.PutUint32(b[53:], uint32(seq.first))      //nolint:gosec // as above
	put.PutUint32(b[57:], uint32(len(flights)))   //nolint:gosec // as above
	put.PutUint32(b[17:], crc32.Checksum(b[21:], castagnoli))
	return b
}

func appendRecord(b, body []byte, later int64, number int) []byte {
	var head [1 + 2*binary.MaxVarintLen64]byte // attributes: none
	n := 1 + binary.PutVarint(head[1:], later)
	n += binary.PutVarint(head[n:], int64(number))
	b = binary.AppendVarint(b, int64(n+len(body)))
	return append(append(b, head[:n]...), body...)
}
