package doctor

import (
	"fmt"

	"github.com/onwardhq/onward/outbox"
)

// Payload compares the largest payload that a destination takes beside the largest headers, in bytes, with the largest that
// may come. setting names what limits it; fix raises that.
func (q *Question) Payload(check, where, setting string, takes int, fix string) Finding {
	f := Finding{Check: check, Where: where, Severity: OK, Read: fmt.Sprintf("%s: payloads up to %d bytes fit beside the largest headers", setting, takes)}
	may := q.MaxPayload
	if may == 0 {
		may = outbox.MaxPayload
	}
	if takes >= may {
		return f
	}
	f.Severity = Note
	f.Means = fmt.Sprintf("writers may write up to %d bytes: what does not fit becomes a dead letter", may)
	if q.MaxPayload > 0 {
		f.Severity = Warning
		f.Means = fmt.Sprintf("topics[].max_payload lets up to %d bytes through: what does not fit becomes a dead letter", may)
	}
	f.Fix = fix
	return f
}
