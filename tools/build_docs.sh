#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tools/build_docs.sh: the site of docs/ in build/docs/html, by Doxygen (Debian) and Sphinx (Python
# index, docs/site/requirements.txt, in a virtual environment of its own). Warnings are errors.
set -eu
cd "$(dirname "$0")/.."
tools/setup.sh docs
out=build/docs
mkdir -p "$out"
venv=build/docs-venv
[ -x "$venv/bin/sphinx-build" ] || {
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -r docs/site/requirements.txt
}
{
    cat docs/site/Doxyfile
    echo "INPUT = include/quern"
    echo "OUTPUT_DIRECTORY = $out"
} | doxygen - >"$out/doxygen.log" 2>&1
QUERN_DOXYGEN_XML="$PWD/$out/xml" "$venv/bin/sphinx-build" -q -W --keep-going -c docs/site \
    -d "$out/doctrees" docs "$out/html"
echo "the site is in $out/html/index.html"
