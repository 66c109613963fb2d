package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka is a Kafka server of one test's own. A broker tells its clients where it is, so whoever is to come through a proxy needs a
// door of its own: an address that the broker listens at, and the proxy's, which it names.
type Kafka struct {
	*Server
	Doors []Door
}

// Door is an address to come in by.
type Door struct{ Listens, Named string }

// NewKafka makes a Kafka server with its data in dir, one process that is broker and controller, from the jars in the folder
// ONWARD_TEST_KAFKA_LIBS, with so many doors beside the one of its URL.
func NewKafka(dir string, doors int) (*Kafka, error) {
	libs := os.Getenv("ONWARD_TEST_KAFKA_LIBS")
	if libs == "" {
		return nil, errors.New("ONWARD_TEST_KAFKA_LIBS is not set")
	}
	address := func() string {
		port, err := freePort()
		if err != nil {
			return "127.0.0.1:0" // the server says so
		}
		return fmt.Sprintf("127.0.0.1:%d", port)
	}
	k := &Kafka{}
	for range doors {
		k.Doors = append(k.Doors, Door{address(), address()})
	}
	plain, controller := address(), address()
	listens, named, protocols := "PLAIN://"+plain, "PLAIN://"+plain, "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT"
	for i, d := range k.Doors {
		listens += fmt.Sprintf(",DOOR%d://%s", i, d.Listens)
		named += fmt.Sprintf(",DOOR%d://%s", i, d.Named)
		protocols += fmt.Sprintf(",DOOR%d:PLAINTEXT", i)
	}
	data := filepath.Join(dir, "data")
	settings := strings.Join([]string{
		"process.roles=broker,controller", "node.id=1", "controller.quorum.voters=1@" + controller, "controller.listener.names=CONTROLLER",
		"listeners=" + listens + ",CONTROLLER://" + controller, "advertised.listeners=" + named, "inter.broker.listener.name=PLAIN",
		"listener.security.protocol.map=" + protocols, "log.dirs=" + data, "auto.create.topics.enable=false", "offsets.topic.replication.factor=1",
		"transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1", "transaction.state.log.num.partitions=4", "",
	}, "\n")
	file := filepath.Join(dir, "server.properties")
	if err := errors.Join(os.Mkdir(data, 0o700), os.WriteFile(file, []byte(settings), 0o600),
		os.WriteFile(filepath.Join(data, "meta.properties"), []byte("version=1\ncluster.id=b253YXJkLXRlc3Qta2Fma2\nnode.id=1\n"), 0o600)); err != nil {
		return nil, err
	}
	k.Server = &Server{name: "kafka", URL: "kafka://" + plain, log: filepath.Join(dir, "log")}
	k.start = func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-cp", libs+"/*", "kafka.Kafka", file)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		log, _ := os.OpenFile(k.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		cmd.Stdout, cmd.Stderr = log, log
		return cmd
	}
	k.ping = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		client, err := kgo.NewClient(kgo.SeedBrokers(plain), kgo.RequestRetries(0), kgo.DisableClientMetrics())
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Ping(ctx)
	}
	return k, nil
}
