#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh HOW ROOT BUILD: does what a user of an installed quern does, in a scratch folder.
#   install              cmake --install of BUILD to BUILD/consumer/prefix; then all files are there
#   pkg-config-shared    cc program.c $(pkg-config --cflags --libs quern)
#   pkg-config-static    the same with -static and --static
#   readme               the README's example, compiled as printed
#   find-package         find_package(quern), shared and static
#   subdirectory         add_subdirectory(quern)
#   command              the installed quern finds its library and answers
set -eu
how=$1 root=$(cd "$2" && pwd) build=$3
prefix=$build/consumer/prefix
scratch=$build/consumer/$how
strict='-std=c11 -Wall -Wextra -Wpedantic -Werror'
version=$(sed -n 's/#define QN_VERSION_\(MAJOR\|MINOR\|PATCH\) //p' "$root/include/quern/base.h" |
    paste -s -d .)

rm -rf "$scratch"
mkdir -p "$scratch"
PKG_CONFIG_PATH=$(find "$prefix" -type d -name pkgconfig 2>/dev/null | head -n 1 || true)
export PKG_CONFIG_PATH

expect_file() {
    [ -e "$1" ] || { echo "not installed: ${1#"$prefix"/}"; exit 1; }
}

case $how in
    install)
        rm -rf "$prefix"
        cmake --install "$build" --prefix "$prefix" >"$scratch/log"
        lib=$(dirname "$(find "$prefix" -name libquern.a)")
        for file in "$lib/libquern.so" "$lib/libquern.so.0" "$lib/libquern.so.$version" \
            "$lib/libquern_ort.so" \
            "$lib/pkgconfig/quern.pc" "$lib/cmake/quern/quernConfig.cmake" \
            "$prefix/include/quern/quern.h" "$prefix/include/quern/status.inc" \
            "$prefix/bin/quern" "$prefix/share/man/man1/quern.1" \
            "$prefix/share/bash-completion/completions/quern"; do
            expect_file "$file"
        done
        # Every public header, and nothing of the inside.
        diff <(cd "$root/include" && find . -type f | sort) \
            <(cd "$prefix/include" && find . -type f | sort)
        # Nothing remembers where it was built.
        if grep -rlI -e "$root" -e "$build" "$prefix"; then
            echo "the files above name the build's folders"
            exit 1
        fi
        ;;
    pkg-config-shared)
        # shellcheck disable=SC2046,SC2086
        ${CC:-cc} $strict "$root/test/consumer/program.c" -o "$scratch/program" \
            $(pkg-config --cflags --libs quern) -lm
        LD_LIBRARY_PATH=$(pkg-config --variable=libdir quern) "$scratch/program"
        readelf -d "$scratch/program" | grep -q 'libquern\.so\.0'
        ;;
    pkg-config-static)
        # shellcheck disable=SC2046,SC2086
        ${CC:-cc} $strict -static "$root/test/consumer/program.c" -o "$scratch/program" \
            $(pkg-config --static --cflags --libs quern)
        "$scratch/program"
        ;;
    readme)
        # The first C example of the README is a program; it compiles as printed and succeeds.
        awk '/^```c$/ { on = 1; next } /^```$/ && on { exit } on' "$root/README.md" \
            >"$scratch/readme.c"
        grep -q 'int main(' "$scratch/readme.c" || { echo "README.md has no C program"; exit 1; }
        # shellcheck disable=SC2046,SC2086
        ${CC:-cc} $strict "$scratch/readme.c" -o "$scratch/program" \
            $(pkg-config --cflags --libs quern) -lm
        (cd "$scratch" && LD_LIBRARY_PATH=$(pkg-config --variable=libdir quern) ./program)
        ;;
    find-package)
        cmake -G Ninja -S "$root/test/consumer/find_package" -B "$scratch" \
            -DCMAKE_PREFIX_PATH="$prefix" >"$scratch.log"
        cmake --build "$scratch" -- --quiet
        "$scratch/with_quern"
        "$scratch/with_quern_static"
        ;;
    subdirectory)
        cmake -G Ninja -S "$root/test/consumer/subdirectory" -B "$scratch" \
            -DQUERN_SOURCE="$root" -DCMAKE_BUILD_TYPE=Debug >"$scratch.log"
        cmake --build "$scratch" --target with_quern_static -- --quiet
        "$scratch/with_quern_static"
        ;;
    command)
        [ "$("$prefix/bin/quern" --version | head -n 1 | awk '{ print $2 }')" = "$version" ]
        bash -n "$prefix/share/bash-completion/completions/quern"
        ;;
    *) echo "run.sh: no way '$how'" >&2; exit 2 ;;
esac
