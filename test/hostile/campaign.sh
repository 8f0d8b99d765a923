#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# campaign.sh QUERN [--long]: hostile files, systematically (campaign.py).
command -v python3 >/dev/null || {
    echo "skipped: no python3 for the campaign of hostile files"
    exit 77
}
exec python3 -B "$(dirname "$0")/campaign.py" "$@"
