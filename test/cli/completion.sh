#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# completion.sh QUERN: what bash would offer, asked for as bash does it.
set -u
quern=$1
# shellcheck source=/dev/null
. "$(dirname "$0")/../../cli/quern.bash"
status=0

expect() { # typed words... : the last one is being completed; offered words in $offered
    COMP_WORDS=("$quern" "$@")
    COMP_CWORD=$#
    _quern
    for word in $offered; do
        printf '%s\n' "${COMPREPLY[@]}" | grep -qxF -e "$word" && continue
        echo "quern $*: $word is not offered, but: ${COMPREPLY[*]}"
        status=1
    done
}
expect_all() { # the same, and nothing else may be offered
    expect "$@"
    if [ "${#COMPREPLY[@]}" -ne "$(wc -w <<<"$offered")" ]; then
        echo "quern $*: offered ${COMPREPLY[*]}, not only: $offered"
        status=1
    fi
}

offered='info demo quantize pack convert inspect compare run bench explain tune help --version'
expect ''
offered='inspect info' expect_all 'in'
offered='quantize' expect_all help 'q'
offered='--help --color' expect info '--'
offered='auto always never' expect_all info --color ''
offered='always' expect_all bench --color 'al'

# Every command has the options that it takes, and no other.
for command in $("$quern" --dump-options | cut -f 1 | sort -u); do
    offered=$("$quern" --dump-options | awk -v c="$command" '$1 == c { print $2 }') \
        expect_all "$command" '--'
done

mkdir -p "folder.x" && : >"model.safetensors"
offered='model.safetensors' expect_all inspect 'mod'
exit $status
