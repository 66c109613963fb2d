package rabbitmq

import (
	"errors"

	"github.com/onwardhq/onward/broker"
)

// maxShort is the longest text that AMQP carries in a property, a routing key or the name of an exchange or header.
const maxShort = 255

// address is where a message goes.
type address struct{ exchange, key string }

// route gives each message its address.
type route struct {
	exchange string
	key      string
}

func parseRoute(c Config) (route, error) {
	if len(c.Exchange) > maxShort || len(c.RoutingKey) > maxShort {
		return route{}, errors.New("the exchange and the routing key have 255 bytes at most")
	}
	return route{c.Exchange, c.RoutingKey}, nil
}

// fixed is the exchange that all messages go to, if there is one.
func (r route) fixed() (string, bool) { return r.exchange, true }

func (r route) of(e *broker.Envelope) (address, error) {
	a := address(r)
	if a.key == "" {
		a.key = e.Topic
	}
	if len(a.exchange) > maxShort || len(a.key) > maxShort {
		return a, errors.New("rabbitmq: exchange and routing key have 255 bytes at most")
	}
	return a, nil
}
