# PgBouncer in transaction mode before the PostgreSQL of the tests, which must run first. Sourced by dev/services; postgres.sh says
# what such a file defines.
# shellcheck shell=bash disable=SC2034,SC2154,SC2164

url_variable=ONWARD_TEST_PGBOUNCER_URL
usual_port=6432
run_user=nobody
stop_signal=TERM # at once: what is in flight is the tests' own

# Debian puts it where only root looks.
pgbouncer_program() { PATH=$PATH:/usr/sbin:/usr/local/sbin command -v pgbouncer || true; }

install() {
  if [ -n "$(pgbouncer_program)" ]; then return; fi
  if is_root && command -v apt-get >/dev/null; then
    apt_install pgbouncer
  else
    fail "PgBouncer is not here, and neither is a Docker engine. Install it with: sudo apt-get install pgbouncer (or set $url_variable)"
  fi
}

postgres_url() { printf '%s\n' "${ONWARD_TEST_POSTGRES_URL:-$(cat "$state_root/postgres/url" 2>/dev/null || true)}"; }

start() {
  local home server host port login database
  home=$(recall home)
  server=$(postgres_url)
  [ -n "$server" ] || fail "pgbouncer: PostgreSQL does not run; start it with: dev/services up postgres"
  read -r host port < <(host_port 5432 "$server")
  login=${server#*://}
  database=${login#*/}
  login=${login%%@*}
  # Whoever connects works as the user of PostgreSQL's URL. No startup parameter is ignored: what a pooler takes from a program by
  # default is what the tests are about.
  cat >"$home/pgbouncer.ini" <<CONF
[databases]
* = host=$host port=$port user=${login%%:*} password=${login#*:} dbname=${database%%\?*}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $1
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 1000
CONF
  chmod 644 "$home/pgbouncer.ini"
  (
    cd "$home"
    serve_as "$run_user" "$(pgbouncer_program)" "$home/pgbouncer.ini"
  )
}

# It answers a startup message once it has a session of the server behind it.
ping() { opens_session "$@"; }

url() { printf 'postgres://onward:onward@127.0.0.1:%s/onward?sslmode=disable\n' "$1"; }

prepare() { :; }
more_env() { :; }
