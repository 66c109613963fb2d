package nats

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/onwardhq/onward/doctor"
)

// monitored is what /varz says, as far as it counts here.
type monitored struct {
	JetStream struct {
		Config *struct {
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
		} `json:"config"`
	} `json:"jetstream"`
}

// sync is how much of what was acknowledged is not on the disk yet. Only the server's monitoring says it: it is a setting of
// each server, not of the stream.
func (x *examination) sync(ctx context.Context) {
	const check = "jetstream-sync"
	if x.told.Config.Storage != "file" {
		return
	}
	if x.p.cfg.MonitorURL == "" {
		x.found(check, doctor.Unknown, "sync_interval was not read: the protocol does not say it", "what a crash of the machine loses is not known; servers write to the disk every 2 minutes unless told otherwise", "name the server's monitoring (http_port) in nats.monitor_url: http://host:8222")
		return
	}
	m, err := monitor(ctx, x.p.cfg.MonitorURL)
	if err == nil && m.JetStream.Config == nil {
		err = fmt.Errorf("it says nothing of JetStream")
	}
	if err != nil {
		x.found(check, doctor.Unknown, "sync_interval was not read: "+err.Error(), "what a crash of the machine loses is not known", "correct nats.monitor_url, or the server's http_port")
		return
	}
	c := m.JetStream.Config
	x.every, x.syncs = c.SyncInterval, c.SyncAlways
	const fix = "jetstream { sync_interval: always } in the server's configuration"
	read := fmt.Sprintf("sync_interval = %v", c.SyncInterval)
	switch {
	case c.SyncAlways:
		x.found(check, doctor.OK, "sync_interval = always", "", "")
	case c.SyncInterval <= 0:
		x.found(check, doctor.Unknown, read, "this server does not say how often it writes to the disk", "upgrade it to NATS 2.10 or later")
	case x.told.Config.Replicas <= 1:
		x.found(check, doctor.Unsafe, read, fmt.Sprintf("a crash of the machine loses what was acknowledged in the last %v", c.SyncInterval), fix)
	default:
		x.found(check, doctor.Note, read, "a power loss of most servers at once loses what was acknowledged since they last wrote to their disks", fix)
	}
}

// monitor asks the server's monitoring.
func monitor(ctx context.Context, address string) (m monitored, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/varz", http.NoBody)
	if err != nil {
		return m, fmt.Errorf("the address cannot be used")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}
	response, err := client.Do(request)
	if err != nil {
		return m, fmt.Errorf("the monitoring does not answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return m, fmt.Errorf("the monitoring answers %s", response.Status)
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, 4<<20)).Decode(&m); err != nil {
		return m, fmt.Errorf("the monitoring's answer cannot be read: %w", err)
	}
	return m, nil
}
