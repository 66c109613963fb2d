module github.com/onwardhq/onward

go 1.25.0
