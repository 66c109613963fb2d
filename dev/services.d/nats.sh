# NATS with JetStream on disk. Sourced by dev/services; postgres.sh says what such a file defines.
# shellcheck shell=bash disable=SC2034,SC2154,SC2164

url_variable=ONWARD_TEST_NATS_URL
usual_port=4222
run_user=nobody
stop_signal=TERM

nats_server=$root/.dev/bin/nats-server-$NATS_SERVER_VERSION

# The program is a Go module, built once a version: about 90 s with an empty build cache.
build_nats_server() {
  if [ -x "$nats_server" ]; then return; fi
  local fresh=$root/.dev/bin/build.$$
  mkdir -p "$fresh"
  GOWORK=off GOFLAGS='' GOBIN=$fresh CGO_ENABLED=0 go install "github.com/nats-io/nats-server/v2@$NATS_SERVER_VERSION" >&2
  mv "$fresh/nats-server" "$nats_server"
  rmdir "$fresh"
}

install() { build_nats_server; }

start() {
  local home
  home=$(recall home)
  cp "$nats_server" "$home/nats-server" # the checkout may be out of reach for the user that it runs as
  cat >"$home/nats.conf" <<CONF
host: 127.0.0.1
port: $1
jetstream { store_dir: "$home/data" }
CONF
  (
    cd "$home"
    serve_as "$run_user" "$home/nats-server" -c "$home/nats.conf"
  )
}

# Ready: it introduces itself with JetStream on, and answers PING.
ping() {
  local line limit=$((SECONDS + 5)) jetstream=
  {
    exec 3<>"/dev/tcp/$1/$2" || return 1
    printf 'CONNECT {"verbose":false}\r\nPING\r\n' >&3
    while ((SECONDS < limit)) && IFS= read -r -t 5 line <&3; do
      case $line in
        INFO*'"jetstream":true'*) jetstream=yes ;;
        PONG*) break ;;
        -ERR*) break ;;
      esac
    done
    exec 3>&-
  } 2>/dev/null
  [ "$jetstream" = yes ]
}

url() { printf 'nats://127.0.0.1:%s\n' "$1"; }

# Tests start servers of their own too, wherever the common one comes from.
prepare() { patiently "nats: build nats-server $NATS_SERVER_VERSION" build_nats_server; }

more_env() {
  if [ -x "$nats_server" ]; then env_line ONWARD_TEST_NATS_SERVER "$nats_server"; fi
}
