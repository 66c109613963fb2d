# Redis. Sourced by dev/services; postgres.sh says what such a file defines.
# shellcheck shell=bash disable=SC2034,SC2154,SC2164

url_variable=ONWARD_TEST_REDIS_URL
usual_port=6379
run_user=redis
stop_signal=TERM

install() {
  if command -v redis-server >/dev/null; then return; fi
  if is_root && command -v apt-get >/dev/null; then
    apt_install redis-server
  else
    fail "Redis is not here, and neither is a Docker engine. Install it with: sudo apt-get install redis-server (or set $url_variable)"
  fi
}

# Durable: an answer comes after fsync, as docs/brokers/redis.md asks for it.
# The title stays the command line, by which dev/services knows its own.
start() {
  local home
  home=$(recall home)
  (
    cd "$home"
    serve_as "$run_user" redis-server --bind 127.0.0.1 --port "$1" --dir "$home" --appendonly yes --appendfsync always --save '' --set-proc-title no
  )
}

ping() {
  local answer=
  {
    exec 3<>"/dev/tcp/$1/$2" || return 1
    printf 'PING\r\n' >&3
    IFS= read -r -t 5 answer <&3 || true
    exec 3>&-
  } 2>/dev/null
  [[ $answer == +PONG* ]]
}

url() { printf 'redis://127.0.0.1:%s\n' "$1"; }

prepare() { :; }

# Tests that restart a server, or change its settings, start one of their own from this program.
more_env() {
  local server
  if server=$(command -v redis-server); then env_line ONWARD_TEST_REDIS_SERVER "$server"; fi
}
