package config

import (
	"strings"

	"github.com/onwardhq/onward/broker/servicebus"
)

// ServiceBus is what only Azure Service Bus needs.
type ServiceBus struct {
	ConnectionString string `key:"connection_string" secret:"true" note:"a key or signature for the namespace or one queue, as the portal shows it (Endpoint=sb://...); then url is servicebus: alone. Without it the machine's identity is asked for a token"`
	ScheduleHeader   string `key:"schedule_header" note:"the name of a message's header with a time (RFC 3339) at which the service hands the message out"`
}

// ServiceBusAddress is what a sink of Service Bus connects to, and whether that brings no key of its own.
func (s *Sink) ServiceBusAddress() (address string, needsIdentity bool) {
	if s.ServiceBus.ConnectionString != "" {
		return s.ServiceBus.ConnectionString, false
	}
	return s.URL, true
}

// serviceBus checks what a sink says of Service Bus.
func (k *checker) serviceBus(path string, s *Sink) {
	c := &s.ServiceBus
	path += ".servicebus"
	if s.Scheme() != "servicebus" {
		k.that(*c == ServiceBus{} || s.URL == "", path, "is for servicebus: the sink's url is another broker's")
		return
	}
	namespace := strings.TrimPrefix(strings.TrimPrefix(s.URL, "servicebus:"), "//")
	switch {
	case c.ConnectionString != "":
		k.that(namespace == "", path+".connection_string", "names a namespace, and so does the sink's url: write url: \"servicebus:\"")
		k.that(servicebus.IsConnectionString(c.ConnectionString), path+".connection_string", "is no connection string: copy the one of the portal, Endpoint=sb://...")
		err := servicebus.CheckAddress(c.ConnectionString)
		k.that(err == nil, path+".connection_string", "%v", err)
	case namespace != "" || k.need >= NeedRelay:
		err := servicebus.CheckAddress(s.URL)
		k.that(err == nil, strings.TrimSuffix(path, ".servicebus")+".url", "%v", err)
	}
}
