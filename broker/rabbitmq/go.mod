module github.com/onwardhq/onward/broker/rabbitmq

go 1.25.0

require (
	github.com/onwardhq/onward v0.1.0
	github.com/rabbitmq/amqp091-go v1.16.0
)
