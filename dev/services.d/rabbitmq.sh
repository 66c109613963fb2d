# RabbitMQ. Sourced by dev/services; postgres.sh says what such a file defines.
# shellcheck shell=bash disable=SC2034,SC2154,SC2164

url_variable=ONWARD_TEST_RABBITMQ_URL
usual_port=5672
run_user=rabbitmq
stop_signal=TERM

rabbitmq_server=/usr/lib/rabbitmq/bin/rabbitmq-server

install() {
  if [ -x "$rabbitmq_server" ]; then return; fi
  if is_root && command -v apt-get >/dev/null; then
    apt_install rabbitmq-server
  else
    fail "RabbitMQ is not here, and neither is a Docker engine. Install it with: sudo apt-get install rabbitmq-server (or set $url_variable)"
  fi
}

start() {
  local home
  home=$(recall home)
  cp "$root/dev/rabbitmq-node" "$home/rabbitmq-node" # the checkout may be out of reach for the user that it runs as
  (
    cd "$home"
    serve_as "$run_user" "$home/rabbitmq-node" run "$home" "$1"
  )
}

# Ready: it answers the first eight bytes of a connection with connection.start (class 10, method 10) in a frame of channel 0.
ping() {
  local answer=
  {
    exec 3<>"/dev/tcp/$1/$2" || return 1
    printf 'AMQP\0\0\011\001' >&3
    answer=$(timeout 5 head -c 11 <&3 | od -An -tx1 | tr -d ' \n')
    exec 3>&-
  } 2>/dev/null
  case $answer in 010000????????000a000a) return 0 ;; *) return 1 ;; esac
}

url() { printf 'amqp://onward:onward@127.0.0.1:%s/\n' "$1"; }

prepare() { :; }

# Tests that restart a node, or fill its memory or disk, start one of their own from this program.
more_env() {
  if [ -x "$rabbitmq_server" ]; then env_line ONWARD_TEST_RABBITMQ_SERVER "$root/dev/rabbitmq-node"; fi
}
