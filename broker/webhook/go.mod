module github.com/onwardhq/onward/broker/webhook

go 1.25.0

require github.com/onwardhq/onward v0.1.0
