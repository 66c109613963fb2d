package kafka

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is two brokers of the tests' own, the first of them the controller too, and a third one for the test that starts it. Whoever comes without a name may do
// everything; users of the other two listeners, with and without TLS, what they were allowed.
type cluster struct {
	dir   string
	libs  string
	ports map[string]int
	roots *x509.CertPool
	nodes [4]*brokerProcess // by id
	alone sync.Mutex        // of the test that has it
}

// brokerProcess is a server that runs.
type brokerProcess struct {
	command *exec.Cmd
	exited  chan struct{}
}

// shared is the cluster of all tests, started by the first that wants it; TestMain ends it.
var shared struct {
	sync.Mutex
	cluster *cluster
	ready   bool
}

// theCluster is the test's alone until it ends.
func theCluster(tb testing.TB) *cluster {
	tb.Helper()
	c := runningCluster(tb)
	c.alone.Lock()
	tb.Cleanup(c.alone.Unlock)
	return c
}

func runningCluster(tb testing.TB) *cluster {
	tb.Helper()
	libs := os.Getenv("ONWARD_TEST_KAFKA_LIBS")
	if libs == "" {
		tb.Skip(`ONWARD_TEST_KAFKA_LIBS is not set: dev/services up kafka && eval "$(dev/services env kafka)"`)
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		c := newCluster(tb, libs)
		shared.cluster = c // also when what follows fails: TestMain ends it
		c.start(tb, 1)
		c.start(tb, 2)
		c.await(tb, 2)
		c.addScramUsers(tb)
		shared.ready = true
	}
	if !shared.ready {
		tb.Fatal("the cluster did not start, as another test says")
	}
	return shared.cluster
}

func endCluster() {
	if c := shared.cluster; c != nil {
		for _, n := range c.nodes {
			if n != nil {
				n.kill()
			}
		}
		_ = os.RemoveAll(c.dir)
	}
}

func newCluster(tb testing.TB, libs string) *cluster {
	tb.Helper()
	dir, err := os.MkdirTemp("", "onward-kafka-") //nolint:usetesting // it is of all tests
	if err != nil {
		tb.Fatal(err)
	}
	c := &cluster{dir: dir, libs: libs, ports: map[string]int{}}
	for _, name := range []string{"controller", "plain1", "sasl1", "tls1", "plain2", "sasl2", "tls2", "plain3", "sasl3", "tls3"} {
		c.ports[name] = freePort()
	}
	c.makeCertificate(tb)
	for id := 1; id <= 3; id++ {
		data := filepath.Join(dir, fmt.Sprint("data", id))
		if err := os.Mkdir(data, 0o700); err != nil {
			tb.Fatal(err)
		}
		c.write(tb, filepath.Join(data, "meta.properties"), fmt.Sprintf("version=1\ncluster.id=b253YXJkLXRlc3Qta2Fma2\nnode.id=%d\n", id))
		c.write(tb, filepath.Join(dir, fmt.Sprint("node", id)), c.properties(id, data))
	}
	return c
}

func (c *cluster) write(tb testing.TB, file, text string) {
	tb.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// freePort is below the range of outgoing connections.
func freePort() int {
	for {
		port := 20000 + mathrand.IntN(12000)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
}

func (c *cluster) properties(id int, data string) string {
	roles, listeners := "broker", ""
	for _, l := range []string{"plain", "sasl", "tls"} {
		listeners += fmt.Sprintf(",%s://127.0.0.1:%d", strings.ToUpper(l), c.ports[l+strconv.Itoa(id)])
	}
	advertised := listeners[1:]
	if id == 1 {
		roles, listeners = "broker,controller", fmt.Sprintf("%s,CONTROLLER://127.0.0.1:%d", listeners, c.ports["controller"])
	}
	text := fmt.Sprintf(`process.roles=%s
node.id=%d
controller.quorum.voters=1@127.0.0.1:%d
listeners=%s
advertised.listeners=%s
`, roles, id, c.ports["controller"], listeners[1:], advertised)
	text += `inter.broker.listener.name=PLAIN
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,TLS:SASL_SSL,CONTROLLER:PLAINTEXT
auto.create.topics.enable=false
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
transaction.max.timeout.ms=60000
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
ssl.keystore.type=PEM
ssl.keystore.location=` + filepath.Join(c.dir, "server.pem") + "\nlog.dirs=" + data + "\n"
	for _, l := range []string{"sasl", "tls"} {
		login := "org.apache.kafka.common.security."
		text += "listener.name." + l + ".plain.sasl.jaas.config=" + login + "plain.PlainLoginModule required user_writes=\"p@ss:word\" user_reads=\"p@ss:word\";\n"
		text += "listener.name." + l + ".scram-sha-256.sasl.jaas.config=" + login + "scram.ScramLoginModule required;\n"
		text += "listener.name." + l + ".scram-sha-512.sasl.jaas.config=" + login + "scram.ScramLoginModule required;\n"
		text += "listener.name." + l + ".oauthbearer.sasl.jaas.config=" + login + "oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=\"x\";\n"
	}
	return text
}

// makeCertificate writes what the brokers show who speaks TLS with them.
func (c *cluster) makeCertificate(tb testing.TB) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kafka"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	c.roots = x509.NewCertPool()
	c.roots.AppendCertsFromPEM(certificate)
	c.write(tb, filepath.Join(c.dir, "server.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))+string(certificate))
}

func (c *cluster) start(tb testing.TB, id int) {
	tb.Helper()
	log, err := os.OpenFile(c.log(id), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	command := exec.Command("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData",
		"-cp", c.libs+"/*", "kafka.Kafka", filepath.Join(c.dir, fmt.Sprint("node", id)))
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		tb.Fatal(err)
	}
	_ = log.Close()
	n := &brokerProcess{command: command, exited: make(chan struct{})}
	go func() {
		_ = command.Wait()
		close(n.exited)
	}()
	c.nodes[id] = n
}

func (c *cluster) log(id int) string { return filepath.Join(c.dir, fmt.Sprint("log", id)) }

func (c *cluster) url() string { return fmt.Sprintf("kafka://127.0.0.1:%d", c.ports["plain1"]) }

// await waits until the cluster counts so many brokers.
func (c *cluster) await(tb testing.TB, brokers int) {
	tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(fmt.Sprintf("127.0.0.1:%d", c.ports["plain1"])), kgo.RequestRetries(0), kgo.DisableClientMetrics())
	if err != nil {
		tb.Fatal(err)
	}
	defer client.Close()
	until(tb, "the cluster is there", func() bool {
		for id, node := range c.nodes {
			if node == nil {
				continue
			}
			select {
			case <-node.exited:
				log, _ := os.ReadFile(c.log(id))
				tb.Fatalf("broker %d ended:\n%s", id, log[max(0, len(log)-4000):])
			default:
			}
		}
		r := kmsg.NewPtrMetadataRequest()
		r.Topics = []kmsg.MetadataRequestTopic{}
		answer, err := r.RequestWith(context.WithoutCancel(tb.Context()), client) // also while the test cleans up
		return err == nil && len(answer.Brokers) == brokers
	})
}

func (n *brokerProcess) kill() {
	_ = n.command.Process.Signal(syscall.SIGKILL)
	<-n.exited
}

// third starts a third broker, until the test ends.
func (c *cluster) third(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(func() {
		c.nodes[3].kill()
		c.nodes[3] = nil
		c.await(tb, 2)
	})
	c.start(tb, 3)
	c.await(tb, 3)
}

// without2 does something while the second broker is silent.
func (c *cluster) without2(tb testing.TB, f func()) {
	tb.Helper()
	_ = c.nodes[2].command.Process.Signal(syscall.SIGSTOP)
	defer func() {
		_ = c.nodes[2].command.Process.Signal(syscall.SIGCONT)
		c.await(tb, 2)
	}()
	f()
}

// bench makes a topic of one partition on these brokers; the first is its leader.
func (c *cluster) bench(tb testing.TB, brokers []int32, settings ...string) *bench {
	tb.Helper()
	b := prepareBench(tb, c.url())
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = b.topic, -1, -1
	place := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
	place.Replicas = brokers
	t.ReplicaAssignment = append(t.ReplicaAssignment, place)
	b.make(t, settings...)
	until(tb, "the topic has its leader", func() bool {
		_, err := b.ends(b.context())
		return err == nil
	})
	return b
}

// allow lets a user do something with a topic.
func (c *cluster) allow(tb testing.TB, user, topic string, operation kmsg.ACLOperation) {
	tb.Helper()
	b := prepareBench(tb, c.url())
	r := kmsg.NewPtrCreateACLsRequest()
	one := kmsg.NewCreateACLsRequestCreation()
	one.ResourceType, one.ResourceName, one.ResourcePatternType = kmsg.ACLResourceTypeTopic, topic, kmsg.ACLResourcePatternTypeLiteral
	one.Principal, one.Host, one.Operation, one.PermissionType = "User:"+user, "*", operation, kmsg.ACLPermissionTypeAllow
	r.Creations = append(r.Creations, one)
	answer, err := r.RequestWith(b.context(), b.admin)
	if err == nil {
		err = kerr.ErrorForCode(answer.Results[0].ErrorCode)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// addScramUsers makes a user for each of the two mechanisms, with the password of all.
func (c *cluster) addScramUsers(tb testing.TB) {
	tb.Helper()
	b := prepareBench(tb, c.url())
	r := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	for mechanism, size := range map[int8]int{1: 32, 2: 64} {
		salt, of := []byte("salt of the test"), sha256.New
		if size == 64 {
			of = sha512.New
		}
		salted, err := pbkdf2.Key(of, password, salt, 4096, size)
		if err != nil {
			tb.Fatal(err)
		}
		one := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		one.Name, one.Mechanism, one.Iterations, one.Salt, one.SaltedPassword = fmt.Sprint("scram", size*8), mechanism, 4096, salt, salted
		r.Upsertions = append(r.Upsertions, one)
	}
	answer, err := r.RequestWith(b.context(), b.admin)
	for i := 0; err == nil && i < len(answer.Results); i++ {
		err = kerr.ErrorForCode(answer.Results[i].ErrorCode)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

const password = "p@ss:word"

// dial makes a publisher that signs in without TLS.
func (c *cluster) dial(tb testing.TB, config Config, mechanism, user string) *Publisher {
	tb.Helper()
	return c.open(tb, config, fmt.Sprintf("kafka://%s:p%%40ss:word@127.0.0.1:%d", user, c.ports["sasl1"]), Options{SASL: mechanism})
}

func (c *cluster) open(tb testing.TB, config Config, url string, o Options) *Publisher {
	tb.Helper()
	p, err := Dial(url, o, config)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeNow(p) })
	return p
}

func (c *cluster) tls() *tls.Config {
	return &tls.Config{RootCAs: c.roots, MinVersion: tls.VersionTLS12}
}

// distrust is TLS that knows nobody.
func (c *cluster) distrust() *tls.Config {
	return &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
}
