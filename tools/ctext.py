# SPDX-License-Identifier: Apache-2.0
"""Reading C as text, for the checkers: comments and strings blanked, includes, functions.

Nothing here is a compiler. Everything keeps line numbers, so that a finding can be clicked.
"""
import os
import re
import sys

C_ENDINGS = (".c", ".h", ".inc", ".cu", ".cuh")

_TOKEN = re.compile(
    r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def _blank(text):
    return re.sub(r"[^\n]", " ", text)


def code(text, keep_strings=False):
    """The text with comments, and strings unless asked, replaced by blanks of the same shape."""

    def swap(match):
        token = match.group(0)
        if token[0] in "\"'":
            return token if keep_strings else token[0] + _blank(token[1:-1]) + token[-1]
        return _blank(token)

    return _TOKEN.sub(swap, text)


def comments(text):
    """Matches of all comments."""
    return (match for match in _TOKEN.finditer(text) if match.group(0)[0] == "/")


def without_directives(text):
    """Blanks preprocessor lines with their continuations, so that braces in macros do not count."""
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda m: _blank(m.group(0)), text, flags=re.M)


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def includes(text):
    """[(line, name, is_angled)]"""
    found = []
    stripped = code(text, keep_strings=True)
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', stripped, re.M):
        quoted, angled = match.groups()
        found.append((line_of(stripped, match.start()), quoted or angled, angled is not None))
    return found


def _matching_open(text, close):
    depth = 0
    for at in range(close, -1, -1):
        if text[at] == ")":
            depth += 1
        elif text[at] == "(":
            depth -= 1
            if depth == 0:
                return at
    return -1


def count_parameters(inside):
    if inside.strip() in ("", "void"):
        return 0
    depth = commas = 0
    for letter in inside:
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            commas += 1
    return commas + 1


def functions(text):
    """[(name, first_line, last_line, n_parameters, head)] of the functions defined in the text.

    head is what stands between the previous definition and the name: static, inline, the type.
    """
    clean = without_directives(code(text))
    clean = re.sub(r'extern\s*"[^"]*"\s*\{', lambda m: _blank(m.group(0)), clean)
    found = []
    depth = start = last_end = 0
    current = None
    for at, letter in enumerate(clean):
        if letter == "{":
            if depth == 0:
                current = _definition(clean, at, last_end)
                start = at
            depth += 1
        elif letter == "}":
            depth = max(depth - 1, 0)  # the stray one closes a blanked extern "C"
            if depth == 0:
                if current is not None and start < at:
                    name, name_at, n_parameters = current
                    head = clean[last_end:name_at].split(";")[-1]
                    found.append((name, line_of(clean, name_at), line_of(clean, at), n_parameters,
                                  " ".join(head.split())))
                    current = None
                last_end = at + 1
    return found


def _definition(clean, brace, last_end):
    """(name, offset, n_parameters) when the brace opens a function's body, else None."""
    before = clean[last_end:brace].rstrip()
    while before.endswith(")"):
        open_at = _matching_open(before, len(before) - 1)
        if open_at < 0:
            return None
        name = re.search(r"(\w+)\s*$", before[:open_at])
        if name is None:
            return None
        if name.group(1) in ("__attribute__", "__launch_bounds__", "_Alignas"):
            before = before[:name.start()].rstrip()
            continue
        if not re.search(r"\w[\s*]+$", before[:name.start()]):
            return None  # a macro call such as a row of a list, not a definition
        return name.group(1), last_end + name.start(), count_parameters(before[open_at + 1:-1])
    return None


def files(root, *folders, endings=C_ENDINGS):
    """Paths relative to root, sorted; build trees and hidden folders are skipped."""
    found = []
    for folder in folders:
        for where, below, names in os.walk(os.path.join(root, folder)):
            below[:] = sorted(d for d in below if not d.startswith((".", "build", "__")))
            for name in names:
                if name.endswith(endings):
                    found.append(os.path.relpath(os.path.join(where, name), root))
    return sorted(found)


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read()


def is_isa_file(path):
    """('x86', 'avx2') for a file compiled with an ISA bundle's flags, as in cmake/isa.cmake."""
    stem = os.path.basename(path).split(".")[0]
    match = re.search(r"(?:^|_)(x86|arm)_([a-z0-9]+)", stem)
    return match.groups() if match and path.endswith(".c") else None


def report(tool, problems):
    """Prints the findings and gives the exit status."""
    for problem in problems:
        print(problem)
    if problems:
        print(f"{tool}: {len(problems)} finding{'s' if len(problems) > 1 else ''}", file=sys.stderr)
    return 1 if problems else 0
