package chaos

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onwardhq/onward/e2e/harness"
)

// Redis is a server with one stream.
const Redis = "redis"

// All topics go to one stream, because two know no order between them; the poisoned one to a key that is no stream.
const (
	redisStream   = "chaos"
	redisText     = "chaos.text"
	redisTemplate = `{{if eq .Topic "` + poisonedTopic + `"}}` + redisText + `{{else}}` + redisStream + `{{end}}`
)

// openRedis starts a server, and reads its stream.
func (b *broker) openRedis(ctx context.Context) (err error) {
	if b.server, err = harness.NewRedis(b.dir, b.log); err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := b.server.Start(starting); err != nil {
		return err
	}
	b.url = b.server.URL
	if b.redis, err = harness.RedisClient(b.url); err != nil {
		return err
	}
	if err := b.redis.Set(ctx, redisText, "text", 0).Err(); err != nil {
		return err
	}
	ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	b.group.Go(func() { b.collectStream(ctx) })
	return nil
}

// collectStream reads the stream to its end, and on. An entry's id says when the server stored it.
func (b *broker) collectStream(ctx context.Context) {
	last := "0"
	for ctx.Err() == nil {
		read, err := b.redis.XRead(ctx, &redis.XReadArgs{Streams: []string{redisStream, last}, Count: 500, Block: 200 * time.Millisecond}).Result()
		if err != nil {
			if !errors.Is(err, redis.Nil) { // else there was nothing new
				pause(ctx, 20*time.Millisecond)
			}
			continue
		}
		for _, entry := range read[0].Messages {
			last = entry.ID
			b.takeEntry(entry)
		}
	}
}

func (b *broker) takeEntry(entry redis.XMessage) {
	text := func(field string) string { value, _ := entry.Values[field].(string); return value }
	number, _, _ := strings.Cut(entry.ID, "-")
	at, _ := strconv.ParseInt(number, 10, 64)
	b.collected.add(Arrival{
		ID: text("onward-id"), Key: text("onward-key"), Epoch: text("onward-epoch"), Digest: digest([]byte(text("onward-payload"))),
		Position: entry.ID, At: time.UnixMilli(at),
	})
}

// completeStream waits until all that the stream has was collected.
func (b *broker) completeStream(ctx context.Context) error {
	for {
		stored, err := b.redis.XLen(ctx, redisStream).Result()
		all, _ := b.collected.counts()
		if err == nil && int64(all) > stored {
			return fmt.Errorf("%d messages were collected, and the stream has %d: it has lost some", all, stored)
		}
		if err == nil && int64(all) == stored {
			return nil
		}
		if !pause(ctx, 20*time.Millisecond) {
			return errors.Join(fmt.Errorf("%d messages were collected, the stream has more", all), ctx.Err(), err)
		}
	}
}

// fillMemory makes the server take no messages, or ends that; a restart ends it, too.
func (b *broker) fillMemory(ctx context.Context, full bool) error {
	limit := "0" // none
	if full {
		limit = "1"
	}
	client, err := harness.RedisClient(b.url) // the collector's remembers for a second that it could not connect
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return client.ConfigSet(ctx, "maxmemory", limit).Err()
}
