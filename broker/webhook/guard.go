package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/onwardhq/onward/outbox"
)

// CodeAddressRefused: the endpoint's name leads to an address that is not public, and that no network of AllowNetworks
// has.
const CodeAddressRefused outbox.Code = "onward/address-refused"

const hintAllow = "if it is meant, list its network in webhook.allow_networks (Go: Config.AllowNetworks)"

// refusedError: connections to the address are not made.
type refusedError struct{ address netip.Addr }

// Error names the address.
func (e *refusedError) Error() string {
	return fmt.Sprintf("webhook: %s is not a public address", e.address)
}

func asRefused(err error) *refusedError {
	if e := (*refusedError)(nil); errors.As(err, &e) {
		return e
	}
	return nil
}

// guard looks at the address itself, when it is dialed: whatever URL, name or answer of a name server led to it. Otherwise
// who may choose an endpoint's URL could have the relay speak to services that only its own network reaches.
type guard struct{ allowed []netip.Prefix }

func (g guard) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("webhook: address %s: %w", address, err)
	}
	ip := at.Addr().WithZone("").Unmap()
	if isPublic(ip) || slices.ContainsFunc(g.allowed, func(n netip.Prefix) bool { return n.Contains(ip) }) {
		return nil
	}
	return &refusedError{ip}
}

// notPublic are the networks of IANA's registries of special-purpose addresses that are not reachable from everywhere, and
// those that carry an IPv4 address to a gateway of this network.
var notPublic = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("3fff::/20"),
}

// ofTheInternet: all other addresses of IPv6 are local, reserved, or translated to IPv4 (64:ff9b::/96).
var ofTheInternet = netip.MustParsePrefix("2000::/3")

func isPublic(ip netip.Addr) bool {
	if ip.Is6() && !ofTheInternet.Contains(ip) {
		return false
	}
	return !slices.ContainsFunc(notPublic, func(n netip.Prefix) bool { return n.Contains(ip) })
}
