package cli

import (
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/onwardhq/onward/broker"
	"github.com/onwardhq/onward/broker/servicebus"
	"github.com/onwardhq/onward/cmd/onward/internal/config"
)

// openServiceBus makes the publisher of Service Bus: with a key, or else with the identity that Azure's environment gives.
func openServiceBus(s config.Sink) (broker.Publisher, error) {
	o := servicebus.Options{Name: "onward " + s.Name}
	address, needsIdentity := s.ServiceBusAddress()
	if needsIdentity {
		credential, err := azidentity.NewDefaultAzureCredential(nil)
		if err != nil {
			return nil, err
		}
		o.Credential = credential
	}
	return servicebus.Dial(address, o, serviceBusConfig(s))
}

func serviceBusConfig(s config.Sink) servicebus.Config {
	return servicebus.Config{ScheduleHeader: s.ServiceBus.ScheduleHeader, AckTimeout: max(s.PublishTimeout, 100*time.Millisecond), Wire: s.Wire()}
}
