#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# symbols.sh LIBRARY LIST HEADERS: the shared library exports exactly the names of the list, and
# every function that a header declares is there; every inline _init() has an exported _init_sized()
# beside it, for callers that are not C. Removing a name breaks programs that are already
# built; adding one is a promise: both are done on purpose, by changing the list.
set -u
library=$1 list=$2 headers=$3
export LC_ALL=C
actual=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sed 's/@.*//' | sort)
wanted=$(grep -v '^#' "$list" | sort)
declared=$(sed -n 's/.*\bQN_API\b[^(]*\b\(qn_[a-z0-9_]*\)(.*/\1/p' "$headers"/*.h | sort -u)

inits=$(sed -n 's/^static inline void \(qn_[a-z0-9_]*_init\)(.*/\1_sized/p' "$headers"/*.h |
    sort -u)

status=0
complain() { # text names
    [ -n "$2" ] || return
    printf '%s\n' "$1"
    printf '    %s\n' $2
    status=1
}
complain "no longer exported (test/abi/symbols.txt lists them):" \
    "$(comm -13 <(echo "$actual") <(echo "$wanted"))"
complain "exported, but not in test/abi/symbols.txt:" \
    "$(comm -23 <(echo "$actual") <(echo "$wanted"))"
complain "declared in a public header, but not in the library:" \
    "$(comm -13 <(echo "$actual") <(echo "$declared"))"
complain "exported, but declared in no public header:" \
    "$(comm -23 <(echo "$actual") <(echo "$declared"))"
complain "not exported, though a header has the inline one (src/api/inits.c):" \
    "$(comm -13 <(echo "$actual") <(echo "$inits"))"
complain "found no inline _init() in the headers: this check is blind" \
    "$([ -n "$inits" ] || echo "$headers")"
[ "$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" = libquern.so.0 ] ||
    complain "the SONAME is not" libquern.so.0
exit $status
