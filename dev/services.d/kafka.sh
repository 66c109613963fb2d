# Kafka, one process that is broker and controller (KRaft). Sourced by dev/services; postgres.sh says what such a file defines.
# shellcheck shell=bash disable=SC2034,SC2154,SC2164

url_variable=ONWARD_TEST_KAFKA_URL
usual_port=9092
run_user=nobody
stop_signal=KILL # its data goes with it: nothing to write down

kafka_libs=$root/.dev/kafka-$KAFKA_VERSION

# The programs are jars of Maven Central, fetched once a version: about half a minute, 44 MB.
fetch_kafka() {
  if [ -d "$kafka_libs" ]; then return; fi
  if ! command -v java >/dev/null || ! command -v mvn >/dev/null; then
    if is_root && command -v apt-get >/dev/null; then
      apt_install default-jre-headless maven
    else
      fail "Kafka needs Java 17 or later and Maven, and there is no Docker engine. Install them with: sudo apt-get install default-jre-headless maven (or set $url_variable)"
    fi
  fi
  local fresh=$kafka_libs.$$ log=$root/.dev/kafka.log
  mkdir -p "$root/.dev"
  mvn -q -B -f "$root/dev/services.d/kafka/pom.xml" -Dkafka.version="$KAFKA_VERSION" \
    org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$fresh" >"$log" 2>&1 || { tail -n 20 "$log" >&2; fail "kafka: Maven could not fetch it"; }
  mv "$fresh" "$kafka_libs"
}

install() { fetch_kafka; }

start() {
  local home controller
  home=$(recall home)
  cp -r "$kafka_libs" "$home/libs" # the checkout may be out of reach for the user that it runs as
  controller=$(free_port)
  mkdir "$home/data"
  # What a format tool would write, without another Java process.
  printf 'version=1\ncluster.id=b253YXJkLWRldi1rYWZrYQ\nnode.id=1\n' >"$home/data/meta.properties"
  cat >"$home/server.properties" <<CONF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$1,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$1
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$home/data
num.partitions=4
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
CONF
  if is_root; then chown -R "$run_user" "$home"; fi
  (
    cd "$home"
    serve_as "$run_user" java -Xmx384m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData \
      -cp "$home/libs/*" kafka.Kafka "$home/server.properties"
  )
}

# Ready: it answers a metadata request (version 4, of no topic), and counts itself among the brokers: the bytes are size,
# correlation id, throttle time, number of brokers.
ping() {
  local answer=
  {
    exec 3<>"/dev/tcp/$1/$2" || return 1
    printf '\0\0\0\017\0\003\0\004\0\0\0\001\377\377\0\0\0\0\0' >&3
    answer=$(timeout 5 head -c 16 <&3 | od -An -v -tx1 | tr -d ' \n') || true
    exec 3>&-
  } 2>/dev/null
  [[ $answer =~ ^.{8}00000001.{8}0000000[1-9]$ ]]
}

url() { printf 'kafka://127.0.0.1:%s\n' "$1"; }

# Tests start servers of their own too, wherever the common one comes from.
prepare() { patiently "kafka: fetch Kafka $KAFKA_VERSION" fetch_kafka; }

more_env() {
  if [ -d "$kafka_libs" ]; then env_line ONWARD_TEST_KAFKA_LIBS "$kafka_libs"; fi
}
