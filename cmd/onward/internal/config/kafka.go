package config

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/onwardhq/onward/broker/kafka"
)

// Kafka is what only Kafka needs.
type Kafka struct {
	Compression        string        `key:"compression" default:"none" note:"of batches: none, gzip, snappy, lz4 or zstd"`
	Tombstone          bool          `key:"tombstone" default:"false" note:"an empty payload is a null record, which deletes its key from a compacted topic"`
	CreateTopics       bool          `key:"create_topics" default:"false" note:"make a missing topic, with the cluster's default numbers of partitions and replicas"`
	TransactionalID    string        `key:"transactional_id" note:"of no_duplicates: transactions: a name of this sink and database among all that write to the cluster; transactional ids begin with it and -"`
	ProgressTopic      string        `key:"progress_topic" default:"onward-progress" note:"of no_duplicates: transactions: the compacted topic that keeps what is published and not settled"`
	TransactionTimeout time.Duration `key:"transaction_timeout" default:"10s" note:"of no_duplicates: transactions: for how long readers wait for the transaction of a relay that died, unless another one takes its place before; 1s to 15m"`
	SASL               string        `key:"sasl" default:"off" note:"how to sign in: off, plain, scram-sha-256 or scram-sha-512 (user and password in the url), or oauthbearer"`
	TokenFile          string        `key:"token_file" note:"of oauthbearer: a file with the token; it is read for each connection, and before the token ends"`
	TLS                bool          `key:"tls" default:"false" note:"speak TLS with every broker"`
}

// Options are how to reach the cluster.
func (c *Kafka) Options(t *tls.Config) (o kafka.Options) {
	if c.SASL != "off" {
		o.SASL = c.SASL
	}
	if c.TokenFile != "" {
		o.Token = func(context.Context) (string, error) {
			text, err := os.ReadFile(c.TokenFile)
			return strings.TrimSpace(string(text)), err
		}
	}
	if c.TLS {
		o.TLS = t
		if t == nil {
			o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	return o
}

// kafka checks what a sink says of Kafka.
func (k *checker) kafka(path string, s *Sink) {
	c := &s.Kafka
	path += ".kafka"
	if s.Scheme() != "kafka" {
		k.that(*c == usualKafka || s.URL == "", path, "is for kafka: the sink's url is another broker's")
		return
	}
	k.transactions(path, s)
	k.oneOf(path+".compression", c.Compression, kafka.Compressions()...)
	k.oneOf(path+".sasl", c.SASL, append([]string{"off"}, kafka.Mechanisms()...)...)
	k.that((c.TokenFile != "") == (c.SASL == "oauthbearer"), path+".token_file", "goes with sasl: oauthbearer, and neither without the other")
	if a, err := kafka.ParseURL(s.URL); err == nil {
		byPassword := c.SASL != "off" && c.SASL != "oauthbearer" && slices.Contains(kafka.Mechanisms(), c.SASL)
		k.that(!byPassword || a.User != "" && a.Password != "", path+".sasl", "%s needs a user and a password: write the url as kafka://user:password@host:9092", c.SASL)
		k.that(c.SASL != "off" || a.User == "", path+".sasl", "is off, and the url has a user: say how to sign in, one of %s", strings.Join(kafka.Mechanisms(), ", "))
	}
	if c.TokenFile != "" && k.need >= NeedRelay {
		_, err := os.ReadFile(c.TokenFile)
		k.that(err == nil || errors.Is(err, os.ErrNotExist) && !s.Enabled, path+".token_file", "%v", err)
	}
}

// transactions checks what a sink says of Kafka's transactions.
func (k *checker) transactions(path string, s *Sink) {
	c, is := &s.Kafka, s.NoDuplicates == noDuplicatesTransactions
	k.that(is || c.TransactionalID == "", path+".transactional_id", "goes with no_duplicates: %s", noDuplicatesTransactions)
	k.that(is || c.ProgressTopic == usualKafka.ProgressTopic, path+".progress_topic", "goes with no_duplicates: %s", noDuplicatesTransactions)
	k.that(is || c.TransactionTimeout == usualKafka.TransactionTimeout, path+".transaction_timeout", "goes with no_duplicates: %s", noDuplicatesTransactions)
	if !is {
		return
	}
	k.that(c.TransactionalID != "" || k.need < NeedRelay, path+".transactional_id", "is missing: name this sink of this database, so that no other one has the name, like orders-production")
	k.that(s.Window.Messages <= transactionsWindow, strings.TrimSuffix(path, ".kafka")+".window.messages", "is %d: with no_duplicates: %s at most %d", s.Window.Messages, noDuplicatesTransactions, transactionsWindow)
	for _, fault := range c.Transactions().Faults() {
		k.that(c.TransactionalID == "", path, "%s", fault)
	}
}

// Transactions are those of the publisher.
func (c *Kafka) Transactions() kafka.Transactions {
	return kafka.Transactions{ID: c.TransactionalID, Topic: c.ProgressTopic, Timeout: c.TransactionTimeout}
}

// noDuplicatesTransactions is the word of no_duplicates; transactionsWindow how many messages of a sink may then be published and
// not settled, all of which a record of the progress topic must hold.
const (
	noDuplicatesTransactions = "transactions"
	transactionsWindow       = 10_000
)

// usualKafka is a block that nobody wrote.
var usualKafka = Kafka{Compression: "none", SASL: "off", ProgressTopic: "onward-progress", TransactionTimeout: 10 * time.Second}
