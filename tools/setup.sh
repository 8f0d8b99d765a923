#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/setup.sh demo|check|bench|docs [--list]: installs the Debian packages that are missing, as
# root or through sudo. Says nothing when nothing is missing; one clear sentence when it cannot
# install. A package counts as there when dpkg says so or when its probe succeeds, so that a
# compiler from somewhere else is good enough. What is a wish makes things faster or lets one more
# test run, and may stay missing.
set -u

# stage  package                 probe: a command in PATH, or a pkg-config module after '@'
packages='
demo     cmake                   cmake
demo     ninja-build             ninja
demo     gcc                     gcc
demo     libc6-dev               -
demo     pkg-config              pkg-config
demo     libcjson-dev            @libcjson
check    g++                     g++
check    binutils                nm
check    python3                 python3
check    python3-venv            -
check    libcmocka-dev           @cmocka
check    libdlpack-dev           -
check    clang-14                clang-14
check    clang                   clang
check    libclang-rt-14-dev      -
check    llvm-14                 llvm-symbolizer-14
check    mandoc                  mandoc
wish     ccache                  ccache
wish     libopenmpi-dev          mpicc.openmpi
wish     openmpi-bin             mpirun.openmpi
wish     libmpich-dev            mpicc.mpich
wish     mpich                   mpirun.mpich
bench    libopenblas-dev         -
bench    libdnnl-dev             -
bench    python3-venv            -
docs     doxygen                 doxygen
docs     python3                 python3
docs     python3-venv            -
cross    gcc-aarch64-linux-gnu   aarch64-linux-gnu-gcc
cross    libc6-dev-arm64-cross   -
cross    qemu-user               qemu-aarch64
'

case "${1:-}" in
    demo) stages='demo' ;;
    check) stages='demo check wish' ;;
    bench) stages='demo bench' ;;
    docs) stages='docs' ;;
    *) echo "usage: tools/setup.sh demo|check|bench|docs [--list]" >&2; exit 2 ;;
esac
# The emulated Arm run is for other machines than Arm.
[ "$1" = check ] && [ "$(uname -m)" = x86_64 ] && stages="$stages cross"

is_there() { # package probe
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ] && return 0
    case "$2" in
        -) return 1 ;;
        @*) command -v pkg-config >/dev/null && pkg-config --exists "${2#@}" ;;
        *) command -v "$2" >/dev/null ;;
    esac
}

wanted='' missing='' wishes=''
while read -r stage package probe; do
    [ -n "$stage" ] || continue
    case " $stages " in *" $stage "*) ;; *) continue ;; esac
    wanted="$wanted $package"
    is_there "$package" "$probe" && continue
    case $stage in
        wish) wishes="$wishes $package" ;;
        *) missing="$missing $package" ;;
    esac
done <<<"$packages"

if [ "${2:-}" = --list ]; then
    printf '%s\n' $wanted
    exit 0
fi
# For a wish alone nobody is asked for a password.
[ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null || [ -n "$missing" ] || wishes=''
[ -n "$missing$wishes" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "quern: no apt-get here, so nothing was installed. What Debian calls$missing is missing;" \
         "please install it with this system's package manager." >&2
    exit 0
fi
as_root=''
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "quern: these packages are missing and need root to install:$missing" >&2
        echo "       ask somebody with root for: apt-get install$missing" >&2
        exit 1
    fi
    as_root='sudo'
fi

echo "quern: installing$missing$wishes"
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
apt() {
    $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get -q -y -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null
}
if [ -n "$missing" ]; then
    # A failed update is not the end: the lists that are there may do.
    apt update
    # shellcheck disable=SC2086
    if ! apt install --no-install-recommends $missing; then
        tail -n 20 "$log" >&2
        echo "quern: apt-get could not install$missing (its last words are above)." >&2
        exit 1
    fi
fi
# shellcheck disable=SC2086
[ -z "$wishes" ] || apt install --no-install-recommends -o Acquire::http::Timeout=10 \
    -o Acquire::Retries=0 $wishes || true
