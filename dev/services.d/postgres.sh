# PostgreSQL. Sourced by dev/services; a server's file defines:
#   url_variable  usual_port  run_user  stop_signal
#   install       makes its programs present on this machine, or says how and fails (private instances only)
#   start PORT    starts it in $(recall home), logs to .../log, remembers pid (private instances only)
#   ping HOST PORT, url PORT
#   prepare       what else `up` does, whoever the server belongs to; more_env: further variables of `env`
# shellcheck shell=bash disable=SC2034,SC2154,SC2164

url_variable=ONWARD_TEST_POSTGRES_URL
usual_port=5432
run_user=postgres
stop_signal=INT # "fast": ends the sessions, then itself

# Tests want many connections and prepared transactions; benchmarks count only with durable settings.
postgres_settings=(
  listen_addresses=127.0.0.1
  unix_socket_directories=
  max_connections=300
  max_prepared_transactions=1200
  shared_buffers=256MB
  max_wal_size=4GB
  fsync=on
  synchronous_commit=on
  full_page_writes=on
  log_line_prefix='%m [%p] %q%a '
)

# postgres_bin: the folder with initdb, pg_ctl and postgres; the newest that is installed.
postgres_bin() {
  if [ -n "${ONWARD_TEST_POSTGRES_BIN:-}" ]; then
    printf '%s\n' "$ONWARD_TEST_POSTGRES_BIN"
    return
  fi
  local bin
  while read -r bin; do
    if [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ]; then
      printf '%s\n' "$bin"
      return
    fi
  done < <(
    printf '%s\n' /usr/lib/postgresql/*/bin | sort -t/ -k5,5nr
    dirname "$(command -v initdb 2>/dev/null)" 2>/dev/null
    if command -v pg_config >/dev/null; then pg_config --bindir; fi
  )
}

install() {
  if [ -n "$(postgres_bin)" ]; then return; fi
  if is_root && command -v apt-get >/dev/null; then
    apt_install postgresql
  else
    fail "PostgreSQL is not here, and neither is a Docker engine. Install it with: sudo apt-get install postgresql (or set $url_variable)"
  fi
  [ -n "$(postgres_bin)" ] || fail "PostgreSQL was installed, but no initdb is found below /usr/lib/postgresql"
}

start() {
  local home bin setting
  home=$(recall home)
  bin=$(postgres_bin)
  printf 'onward\n' >"$home/password"
  chmod 644 "$home/password"
  (
    cd "$home"
    as_user "$run_user" "$bin/initdb" --pgdata="$home/data" --username=onward --pwfile="$home/password" --auth=scram-sha-256 \
      --encoding=UTF8 --locale=C --no-instructions >"$home/log" 2>&1
    for setting in "${postgres_settings[@]}"; do
      printf "%s = '%s'\n" "${setting%%=*}" "${setting#*=}"
    done >>"$home/data/postgresql.conf"
    printf 'CREATE DATABASE onward;\n' | as_user "$run_user" "$bin/postgres" --single -D "$home/data" postgres >>"$home/log" 2>&1
    serve_as "$run_user" "$bin/postgres" -D "$home/data" -p "$1"
  )
}

ping() { opens_session "$@"; }

url() { printf 'postgres://onward:onward@127.0.0.1:%s/onward?sslmode=disable\n' "$1"; }

prepare() { :; }

# Tests that kill or restart a server start one of their own from these programs.
more_env() {
  local bin
  bin=$(postgres_bin)
  if [ -n "$bin" ]; then env_line ONWARD_TEST_POSTGRES_BIN "$bin"; fi
}
