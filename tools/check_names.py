#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names: kernels by the grammar of docs/names.md, prefixes of everything else, plain words.

    check_names.py [--root DIR] [--archive libquern.a] [--shared libquern.so]
    check_names.py --describe NAME

With --archive, every global symbol of the library begins with qn_ or qni_; with --shared, what is
exported begins with qn_. Exit status 1 and one line per finding when a rule is broken.
"""
import argparse
import os
import re
import subprocess
import sys

import ctext

# The feature bit that a kernel of each ISA needs at least (include/quern/context.h).
ISA_BITS = {
    "scalar": "", "avx2": "QN_ISA_AVX2", "avxvnni": "QN_ISA_AVX_VNNI", "avx512": "QN_ISA_AVX512",
    "vnni512": "QN_ISA_VNNI512", "bf16512": "QN_ISA_BF16_512", "fp16512": "QN_ISA_FP16_512",
    "amx": "QN_ISA_AMX_", "neon": "QN_ISA_NEON", "dotprod": "QN_ISA_DOTPROD", "i8mm": "QN_ISA_I8MM",
}
# A public enumeration, macro guard or the like may be written only so.
TYPEDEF = re.compile(r"\btypedef\b([^;{}]*(?:\{[^{}]*\}[^;{}]*)?);", re.S)

# Folders that are held to the words of docs/glossary.md, and those whose comments are, too.
PLAIN_FOLDERS = ("src/cpu", "cli", "src/checkpoint")
COMMENT_FOLDERS = ("src", "cli", "ort")
# Private words for which the field has one, in comments and as parts of names.
BANNED = re.compile(r"\b(lessen(s|ed|ing)?|mend(s|ed|ing)?|settle[sd]?|settling|lift(s|ed|ing)?|"
                    r"makes others of|what is left|wild|tame|strange)\b", re.I)
BANNED_PARTS = {"lessen", "lessens", "lessened", "mend", "mended", "settle", "settled", "lift",
                "lifted", "wild", "tame", "strange"}
# Names that say nothing without a word before them.
GENERIC = {"piece", "room", "run", "scratch", "look", "place", "some"}
# A comment that begins so points at something else, and is no sentence without it.
POINTING = re.compile(r"(The same|Of|Those|That|Which|Who|It|They|These|This|So|And|Or|But|Its|"
                      r"Their|As many|Here|Else)\b")
SOURCE_PATH = re.compile(r"\b(?:src|cli|ort|test|bench|fuzz|tools|include)/[\w/]+\."
                         r"(?:c|h|inc|cu|cuh|py|sh)\b")
SOURCE_NAME = re.compile(r"(?<![\w*<.>/-])[\w-]+\.(?:c|h|inc|cu|cuh|py|md)\b")
BLOCK_COMMENT = re.compile(r"^/\*((?:[^*]|\*(?!/))*)\*/\n(?=\S)", re.M)


ROW = r"^[ \t]*(QNI?_[A-Z0-9_]+)\(((?:[^()\"]|\"[^\"\n]*\"|\([^()]*\))*)\)"


class Grammar:
    """The terminals of the grammar block: rule -> [(regular expression, meaning)]."""

    def __init__(self, root):
        text = ctext.read(root, "docs/names.md")
        block = re.search(r"```grammar\n(.*?)```", text, re.S)
        if block is None:
            raise SystemExit("docs/names.md: no ```grammar block")
        self.rules = {}
        rule = None
        for line in block.group(1).splitlines():
            match = re.match(r"(\w+|)\s*([=|])\s*(\S+)\s*(.*)$", line)
            if match is None:
                raise SystemExit(f"docs/names.md: cannot read the grammar line: {line}")
            name, sign, word, meaning = match.groups()
            rule = name or rule
            if rule == "kernel":
                parts = re.sub(r'"[^"]*"', " ", word + " " + meaning)
                self.order = parts.split()
                continue
            self.rules.setdefault(rule, []).append(
                (re.escape(word).replace(r"\#", "[1-9][0-9]*"), word, meaning))
        parts = []
        for name in self.order:
            words = sorted((w for w, _, _ in self.rules[name]), key=len, reverse=True)
            parts.append(f"(?P<{name}>{'|'.join(words)})")
        self.pattern = re.compile("qni_" + "_".join(parts) + "$")

    def parse(self, name):
        match = self.pattern.match(name)
        return match.groupdict() if match else None

    def first_wrong(self, name):
        """Which part of the name is not in the grammar, in words."""
        rest = name[len("qni_"):] if name.startswith("qni_") else name
        if rest == name:
            return "it does not begin with qni_"
        for rule in self.order:
            for word, _, _ in sorted(self.rules[rule], key=lambda w: -len(w[0])):
                match = re.match(rf"{word}(_|$)", rest)
                if match:
                    rest = rest[match.end():]
                    break
            else:
                allowed = ", ".join(w for _, w, _ in self.rules[rule])
                return f"no {rule} at '{rest}' (possible: {allowed})"
        return f"'{rest}' is left over"

    def describe(self, name):
        parts = self.parse(name)
        if parts is None:
            return f"{name}: {self.first_wrong(name)}"
        lines = [name]
        for rule in self.order:
            for word, shown, meaning in self.rules[rule]:
                if re.fullmatch(word, parts[rule]):
                    number = re.search("[1-9][0-9]*", parts[rule]) if "#" in shown else None
                    if number:
                        meaning = meaning.replace("#", number.group(0))
                    lines.append(f"  {rule:8} {parts[rule]:10} {meaning}")
                    break
        return "\n".join(lines)


def rows(text):
    """[(line, macro, [columns])] of the X-macro rows of an .inc file."""
    found = []
    words = ctext.code(text, keep_strings=True)
    for match in re.finditer(ROW, words, re.M):
        columns, depth, column = [], 0, ""
        for piece in re.findall(r"\"[^\"\n]*\"|.", match.group(2), re.S):
            depth += (piece == "(") - (piece == ")")
            if piece == "," and depth == 0:
                columns.append(column.strip())
                column = ""
            else:
                column += piece
        columns.append(column.strip())
        found.append((ctext.line_of(words, match.start()), match.group(1), columns))
    return found


def columns_of(root, inc, macro):
    """The names of the columns: parameters of the macro where kernel.h expands the list."""
    folder = os.path.dirname(inc)
    for header in (os.path.join(folder, "kernel.h"),
                   os.path.join(os.path.dirname(folder), "kernel.h")):
        if not os.path.isfile(os.path.join(root, header)):
            continue
        match = re.search(rf"#\s*define\s+{macro}\(([^)]*)\)", ctext.read(root, header))
        if match:
            return [word.strip() for word in match.group(1).split(",")]
    return []


def check_row(root, grammar, path, line, macro, columns):
    name = columns[0]
    parts = grammar.parse(name)
    if parts is None:
        return [f"{path}:{line}: {name}: {grammar.first_wrong(name)}"]
    problems = []
    facts = dict(zip(columns_of(root, path, macro), columns))
    for column in ("reads", "layout"):
        if column in facts and facts[column].lower().replace("_", "") != parts[column]:
            problems.append(f"{path}:{line}: {name}: its {column} is {facts[column]}, "
                            f"the name says {parts[column]}")
    rows_at_once = re.match(r"mr([0-9]+)", parts["variant"])
    if "mr" in facts and rows_at_once and facts["mr"] != rows_at_once.group(1):
        problems.append(f"{path}:{line}: {name}: its mr is {facts['mr']}, the name says "
                        f"{rows_at_once.group(1)}")
    if "needs" in facts and parts["isa"] in ISA_BITS:
        bit = ISA_BITS[parts["isa"]]
        fine = facts["needs"] in ("0", "QN_ISA_PORTABLE") if bit == "" else bit in facts["needs"]
        if not fine:
            problems.append(f"{path}:{line}: {name}: needs {facts['needs']}, "
                            f"the name says {parts['isa']}")
    return problems


def check_kernels(root, grammar):
    problems = []
    listed = {}
    for path in ctext.files(root, "src", endings=("kernels.inc",)):
        for line, macro, columns in rows(ctext.read(root, path)):
            if not macro.endswith("_KERNEL"):
                problems.append(f"{path}:{line}: {macro}: a row is QNI_<OP>_KERNEL(...)")
                continue
            if columns[0] in listed:
                problems.append(f"{path}:{line}: {columns[0]}: listed twice")
            listed[columns[0]] = f"{path}:{line}"
            problems += check_row(root, grammar, path, line, macro, columns)
    # Where a kernel is defined; rows may be exported by a one-line macro, so a word is enough.
    for path in ctext.files(root, "src/cpu", "src/cuda", endings=(".c", ".cu")):
        words = set(re.findall(r"\bqni_\w+", ctext.code(ctext.read(root, path))))
        for name in sorted(words):
            parts = grammar.parse(name)
            if parts is None:
                continue
            isa_file = ctext.is_isa_file(path)
            if path.endswith(".cu"):
                fine = re.search(rf"_{parts['isa']}\.cu$", path)
            else:
                fine = (isa_file[1] if isa_file else "scalar") == parts["isa"]
            if not fine:
                problems.append(f"{path}: {name}: a kernel of ISA {parts['isa']} has its own file")
            if path.startswith("src/cpu/conv/") and \
                    not os.path.basename(path).startswith(parts["op"] + "_"):
                problems.append(f"{path}: {name}: its file is {parts['op']}_<isa>_<algorithm>.c")
            if name not in listed:
                problems.append(f"{path}: {name}: has no row in a kernels.inc")
    return problems


def check_words(root):
    problems = []
    for path in ctext.files(root, "include", "src", "cli", "ort", "test", "bench", "fuzz"):
        if path.startswith("test/api/fake_nccl/"):
            continue  # names of NCCL and CUDA
        text = ctext.code(ctext.read(root, path))
        for match in TYPEDEF.finditer(text):
            line = ctext.line_of(text, match.start())
            body = " ".join(re.sub(r"\{.*\}", "{}", match.group(1), flags=re.S).split())
            is_function = re.search(r"\(", re.sub(r"__attribute__\s*\(\(.*?\)\)", "", body))
            name = re.search(r"(\w+)$", body)
            if name and name.group(1).endswith("_t"):
                problems.append(f"{path}:{line}: typedef {name.group(1)}: no _t names of our own")
            if not is_function and re.search(r"\*\s*\w+$", body):
                problems.append(f"{path}:{line}: typedef {body}: never hide a *")
        if path.startswith("include/"):
            problems += check_public(path, text)
        if path.startswith(("src/", "cli/")) and path.endswith(".c"):
            for name, line, _, _, head in ctext.functions(text):
                if re.search(r"\b(static|QNI_TEMPLATE)\b", head) and re.match(r"qni?_", name):
                    problems.append(f"{path}:{line}: {name}: a static function has no prefix")
    return problems


def check_public(path, text):
    problems = []
    for match in re.finditer(r"\bQN_API\b[^;]*?\b(\w+)\s*\(", ctext.without_directives(text)):
        if not re.fullmatch(r"qn_[a-z0-9]+(_[a-z0-9]+)*", match.group(1)):
            line = ctext.line_of(text, match.start())
            problems.append(f"{path}:{line}: {match.group(1)}: a public function is qn_noun_verb")
    for match in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M):
        if not re.match(r"(QN_|QUERN_)", match.group(1)):
            line = ctext.line_of(text, match.start())
            problems.append(f"{path}:{line}: {match.group(1)}: a public macro begins with QN_")
    return problems


def check_plain_names(path, text, code):
    """Banned words, and generic names of structs, functions and variables."""
    problems = []
    for match in ctext.comments(text):
        for word in BANNED.finditer(" ".join(match.group(0).replace("*", " ").split())):
            line = ctext.line_of(text, match.start())
            problems.append(f"{path}:{line}: '{word.group(0)}': the field has another word "
                            "(docs/glossary.md)")
    for match in re.finditer(r"\b[A-Za-z_]\w*", code):
        line = ctext.line_of(code, match.start())
        parts = match.group(0).lower().split("_")
        if match.group(0) == "some" or BANNED_PARTS.intersection(parts):
            problems.append(f"{path}:{line}: {match.group(0)}: a plain word, please "
                            "(docs/glossary.md)")
    names = [(m.group(1), ctext.line_of(code, m.start()))
             for m in re.finditer(r"\bstruct\s+(\w+)\s*\{", code)]
    names += [(name, line) for name, line, _, _, _ in ctext.functions(text)]
    for name, line in names:
        if name in GENERIC and not path.startswith("cli/"):
            problems.append(f"{path}:{line}: {name}: say of what (row_range, gather_scratch)")
    return problems


def check_comments(path, text):
    """A comment before a declaration is sentences. Lists, tables and formulas may end it, and the
    name of something that is declared there may begin it."""
    problems = []
    for match in BLOCK_COMMENT.finditer(text):
        lines = [line.lstrip(" ")[1:] if line.lstrip(" ").startswith("*") else line
                 for line in match.group(1).rstrip().split("\n")]
        body = " ".join(" ".join(lines).split())
        line = ctext.line_of(text, match.start())
        if line <= 2 or not body or body.startswith(("SPDX", "-", "clang-format")):
            continue
        first = re.match(r"\w+", body)
        declared = text[match.end():match.end() + 600]
        is_name = first and (re.search(rf"\b{re.escape(first.group(0))}\b", declared) or
                             re.match(r"\w*([_(\[0-9.]| =)", body))
        if first and first.group(0)[0].islower() and not is_name:
            problems.append(f"{path}:{line}: a comment begins with a capital letter: {body[:40]}")
        if first and POINTING.match(body):
            problems.append(f"{path}:{line}: a comment stands on its own, and this one begins with "
                            f"what it points at: {body[:40]}")
        is_list = lines[-1].startswith("    ") or re.match(r"[\[\d]", body)
        if body[-1] not in ".?!:)" and not is_list:
            problems.append(f"{path}:{line}: a comment ends with a full stop: {body[-40:]}")
    return problems


def check_sources_named(root):
    """A source file that a comment names exists: files move, and comments stay."""
    names = {os.path.basename(path)
             for path in ctext.files(root, "include", "src", "cli", "ort", "tools", "test", "bench",
                                     "lab", "docs", endings=("",))}
    problems = []
    for path in ctext.files(root, *COMMENT_FOLDERS, endings=(".c", ".h", ".inc")):
        text = ctext.read(root, path)
        for match in ctext.comments(text):
            line = ctext.line_of(text, match.start())
            for word in SOURCE_NAME.finditer(match.group(0)):
                if word.group(0) not in names:
                    problems.append(f"{path}:{line}: there is no {word.group(0)}")
            for word in SOURCE_PATH.finditer(match.group(0)):
                if not os.path.exists(os.path.join(root, word.group(0))):
                    problems.append(f"{path}:{line}: there is no {word.group(0)}")
    return problems


def check_plain(root):
    problems = check_sources_named(root)
    for path in ctext.files(root, *PLAIN_FOLDERS, endings=(".c", ".h", ".inc")):
        text = ctext.read(root, path)
        problems += check_plain_names(path, text, ctext.code(text))
    for path in ctext.files(root, *COMMENT_FOLDERS, endings=(".c", ".h")):
        problems += check_comments(path, ctext.read(root, path))
    return problems


def symbols(*command):
    output = subprocess.run(("nm", *command), check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        match = re.match(r"[0-9a-f]+ ([A-Za-z]) (\S+)$", line)
        if match:
            yield match.group(2).split("@")[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), ".."))
    parser.add_argument("--archive")
    parser.add_argument("--shared")
    parser.add_argument("--describe", metavar="NAME")
    options = parser.parse_args()
    grammar = Grammar(options.root)
    if options.describe:
        print(grammar.describe(options.describe))
        return 0 if grammar.parse(options.describe) else 1
    problems = check_kernels(options.root, grammar) + check_words(options.root)
    problems += check_plain(options.root)
    if options.archive:
        for name in symbols("--defined-only", "--extern-only", options.archive):
            # nvcc mangles the names of kernels and of what it makes around them.
            if not re.match(r"qni?_|_Z.*(qni_|_GLOBAL__N_|__device_stub__)", name):
                problems.append(f"{os.path.basename(options.archive)}: {name}: "
                                "a global symbol begins with qn_ or qni_")
    if options.shared:
        for name in symbols("-D", "--defined-only", options.shared):
            if not re.match(r"(qn_|QN_[0-9]+$)", name):
                problems.append(f"{os.path.basename(options.shared)}: {name}: "
                                "an exported symbol begins with qn_")
    return ctext.report("check_names", problems)


if __name__ == "__main__":
    sys.exit(main())
