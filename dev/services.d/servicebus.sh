# What stands for Azure Service Bus: dev/servicebus-peer. Sourced by dev/services; postgres.sh says what such a file defines.
# shellcheck shell=bash disable=SC2034,SC2154,SC2164

url_variable=ONWARD_TEST_ASB_PEER_URL
usual_port=5672
run_user=nobody
stop_signal=TERM

# has_proton: Debian's Python with the protocol engine, whatever other Python comes first on the PATH.
has_proton() { /usr/bin/python3 -c 'import proton' 2>/dev/null; }

install() {
  if has_proton; then return; fi
  if is_root && command -v apt-get >/dev/null; then
    apt_install python3 python3-qpid-proton
    has_proton || fail "python3-qpid-proton is installed, and /usr/bin/python3 does not find it"
  else
    fail "Qpid Proton is not here, and neither is a Docker engine. Install it with: sudo apt-get install python3-qpid-proton (or set $url_variable)"
  fi
}

start() {
  local home
  home=$(recall home)
  cp "$root/dev/servicebus-peer" "$home/servicebus-peer" # the checkout may be out of reach for the user that it runs as
  (
    cd "$home"
    serve_as "$run_user" "$home/servicebus-peer" "$1" "$home"
  )
}

# Ready: it answers the first eight bytes of AMQP 1.0 with SASL in kind.
ping() {
  local answer=
  {
    exec 3<>"/dev/tcp/$1/$2" || return 1
    printf 'AMQP\003\001\0\0' >&3
    answer=$(timeout 5 head -c 8 <&3 | od -An -tx1 | tr -d ' \n')
    exec 3>&-
  } 2>/dev/null
  [ "$answer" = 414d515003010000 ]
}

url() { printf 'servicebus://127.0.0.1:%s\n' "$1"; }

prepare() { :; }

# Tests that kill it start one of their own from this program.
more_env() {
  if has_proton; then env_line ONWARD_TEST_ASB_PEER "$root/dev/servicebus-peer"; fi
}
