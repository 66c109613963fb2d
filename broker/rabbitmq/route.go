package rabbitmq

import (
	"errors"
	"fmt"
	"strings"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/outbox"
)

// maxShort is the longest text that AMQP carries in a property, a routing key or the name of an exchange or header.
const maxShort = 255

// address is where a message goes.
type address struct{ exchange, key string }

// route gives each message its exchange.
type route struct {
	text     string
	template *broker.Template // nil: all messages go to the exchange of that name
}

func newRoute(exchange string) (r route, err error) {
	r.text = exchange
	if strings.Contains(exchange, "{{") {
		r.template, err = broker.ParseTemplate(exchange)
	} else if len(exchange) > maxShort {
		err = &outbox.Error{Code: outbox.ErrConfigInvalid.Code, Detail: fmt.Sprintf("the name of an exchange has %d bytes, the most is %d", len(exchange), maxShort)}
	}
	return r, err
}

// CheckExchange reports what is wrong with the name of an exchange, or the template of one.
func CheckExchange(exchange string) error {
	_, err := newRoute(exchange)
	if e := (*outbox.Error)(nil); errors.As(err, &e) {
		return errors.New(e.Detail)
	}
	return err
}

// fixed is the exchange that all messages go to, if there is one.
func (r route) fixed() (string, bool) { return r.text, r.template == nil }

// of is a message's address; key is its routing key.
func (r route) of(e *broker.Envelope, key string) (a address, fault *broker.Result) {
	a = address{r.text, key}
	if r.template != nil {
		name, err := r.template.Expand(e)
		if err != nil {
			f := templateFailed.result(err)
			return a, &f
		}
		if a.exchange = name; name == "" {
			f := badAddress.errorf("the template %s gives no exchange", r.text)
			return a, &f
		}
	}
	if len(a.exchange) > maxShort || len(a.key) > maxShort {
		f := badAddress.errorf("exchange and routing key have %d and %d bytes, the most is %d each", len(a.exchange), len(a.key), maxShort)
		return a, &f
	}
	return a, nil
}
