#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# manual.sh QUERN: the manual page in the tree is the one the command prints, mandoc finds nothing
# wrong with it, and every option that the command takes is described in it.
set -u
quern=$1
page=$(dirname "$0")/../../cli/quern.1
status=0

if ! diff -u "$page" <("$quern" --dump-man); then
    echo "cli/quern.1 is out of date: quern --dump-man > cli/quern.1"
    status=1
fi
if command -v mandoc >/dev/null; then
    # Warnings and errors count; a cross reference to nowhere or a date is a matter of style.
    if ! mandoc -T lint -W warning "$page"; then
        status=1
    fi
    text=$(mandoc -T utf8 "$page" | col -b)
    while IFS=$'\t' read -r command option _; do
        grep -q -e "$option\b" <<<"$text" || { echo "$command $option is not described"; status=1; }
    done < <("$quern" --dump-options)
    [ "$("$quern" --dump-options | wc -l)" -gt 20 ] || { echo "hardly an option found"; status=1; }
fi
exit $status
