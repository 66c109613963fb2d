package harness

import (
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/Azure/go-amqp"
)

// NewServiceBusPeer makes what stands for Azure Service Bus, dev/servicebus-peer, by the program in ONWARD_TEST_ASB_PEER. What it has
// stored is a line of the file journal in dir before it answers, and it knows it again when it is started again.
func NewServiceBusPeer(dir, log string) (*Server, error) {
	program := os.Getenv("ONWARD_TEST_ASB_PEER")
	if program == "" {
		return nil, errors.New("ONWARD_TEST_ASB_PEER is not set")
	}
	return newProgram("servicebus-peer", "servicebus", log, func(port int) *exec.Cmd {
		return exec.CommandContext(context.Background(), program, strconv.Itoa(port), dir) //nolint:gosec // the test's own server
	}, func(ctx context.Context, url string) error {
		conn, err := dialPeer(ctx, url)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func dialPeer(ctx context.Context, address string) (*amqp.Conn, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return amqp.Dial(ctx, "amqp://"+u.Host, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
}

// DeclareAtPeer makes an entity of the peer at a URL, or changes how it behaves; dev/servicebus-peer names the settings.
func DeclareAtPeer(ctx context.Context, address, entity string, settings map[string]any) error {
	body := map[string]any{"entity": entity}
	for name, value := range settings {
		body[name] = value
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	conn, err := dialPeer(ctx, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return err
	}
	sender, err := session.NewSender(ctx, "$peer", nil)
	if err != nil {
		return err
	}
	return sender.Send(ctx, amqp.NewMessage(text), nil)
}

// PeerConnection is the connection string of the peer at a URL, with a key that may send.
func PeerConnection(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	return "Endpoint=sb://" + u.Host + ";SharedAccessKeyName=onward;SharedAccessKey=c2VjcmV0LW9mLW9ud2FyZA==;UseDevelopmentEmulator=true", nil
}
