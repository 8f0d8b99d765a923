# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by scripts with steps that are silent for minutes: a line now and then that says what goes
# on and for how long.
#
#   progress_begin SECONDS FUNCTION     from now on, every so many seconds, what FUNCTION prints
#   progress_end                        no more

progress_pid=''

progress_begin() {
    local every=$1 words=$2 begun=$SECONDS
    (
        nap=''
        trap 'kill $nap 2>/dev/null; exit 0' TERM
        while :; do
            sleep "$every" >/dev/null 2>&1 &
            nap=$!
            wait $nap
            printf '%s, %d:%02d min\n' "$($words)" $(((SECONDS - begun) / 60)) \
                $(((SECONDS - begun) % 60))
        done
    ) &
    progress_pid=$!
}

progress_end() {
    [ -n "$progress_pid" ] || return 0
    kill "$progress_pid" 2>/dev/null
    wait "$progress_pid" 2>/dev/null
    progress_pid=''
}

# The last lines of a failed step: which tests failed, and the first lines that say why.
why_it_failed() { # log
    grep -hE '^[[:space:]]*[0-9]+ - .*\((Failed|Timeout|SEGFAULT|Not Run|Subprocess|ILLEGAL|BUS)' \
        "$1" | sort -u | head -n 20
    grep -hE 'error:|ERROR|^FAILED|^FAIL:|AssertionError|\*\*\*(Timeout|Exception)|warning:' "$1" |
        grep -vE '^(Errors while|FAILED: \[|The following)|\[  FAILED' | head -n 8
}
