package doctor

import (
	"fmt"
	"time"
)

// How far a clock may be off before it is said: Skew is a note, GreatSkew a warning.
const (
	Skew      = time.Second
	GreatSkew = 30 * time.Second
)

// Clock compares a server's clock with this machine's. The server was asked at before, by this machine's clock, and had
// answered at after; said is its time in between, exact to precision (0: a microsecond or better).
func Clock(whose string, said, before, after time.Time, precision time.Duration) Finding {
	f := Finding{Check: "clock-skew", Severity: OK}
	var off time.Duration // as little as explains the answer
	switch {
	case said.Add(precision).Before(before):
		off = said.Add(precision).Sub(before)
	case said.After(after):
		off = said.Sub(after)
	}
	by := off.Abs().Round(time.Millisecond)
	switch {
	case off == 0 || by < Skew:
		f.Read = fmt.Sprintf("the clock of %s agrees with this machine's to %v", whose, max(by, precision, after.Sub(before), time.Millisecond).Round(time.Millisecond))
		return f
	case off < 0:
		f.Read = fmt.Sprintf("the clock of %s is %v behind this machine's", whose, by)
	default:
		f.Read = fmt.Sprintf("the clock of %s is %v ahead of this machine's", whose, by)
	}
	f.Severity = Note
	if by >= GreatSkew {
		f.Severity = Warning
	}
	f.Means = "leases, order and schedules go by the database's clock alone and are not touched; ages, signatures' times and what people compare in logs are off by this"
	f.Fix = "let both machines keep their time: timedatectl set-ntp true"
	return f
}
