#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Proof that each checker fails: a small clean tree passes, and each planted violation is found.

A checker that finds nothing because it looks at nothing is the failure meant here.
"""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import check_sizes

TOOLS = os.path.dirname(os.path.abspath(__file__))
LICENCE = "/* SPDX-License-Identifier: Apache-2.0 */\n"

CLEAN = {
    "include/quern/base.h":
        "#include <stdint.h>\n#define QN_API\nQN_API int32_t qn_base_version(void);\n",
    "src/base/half.h": "#include <string.h>\n",
    "src/base/alloc.c":
        "#include <stdlib.h>\nvoid *qni_alloc(size_t n)\n{\n    return malloc(n);\n}\n",
    "src/quant/canonical.h": '#include "../base/half.h"\n#include <quern/base.h>\n',
    "src/cpu/matmul/kernel.h":
        "#define QNI_MATMUL_KERNEL(fn, needs, reads, layout, mr) void fn(float *c);\n"
        '#include "kernels.inc"\n#undef QNI_MATMUL_KERNEL\n',
    "src/cpu/matmul/kernels.inc":
        "QNI_MATMUL_KERNEL(qni_matmul_f32_q4n16_mr4_avx2, QN_ISA_AVX2, F32, Q4N16, 4)\n"
        "QNI_MATMUL_KERNEL(qni_matmul_f32_q4n16_mr1_scalar, 0, F32, Q4N16, 1)\n",
    "src/cpu/matmul/x86_avx2.c":
        '#include "kernel.h"\n#include <immintrin.h>\n'
        "static void tile(float *c, const int mr)\n{\n    c[mr] = 1;\n}\n"
        "void qni_matmul_f32_q4n16_mr4_avx2(float *c)\n{\n    tile(c, 4);\n}\n",
    "src/cpu/matmul/scalar.c":
        '#include "kernel.h"\n'
        "void qni_matmul_f32_q4n16_mr1_scalar(float *c)\n{\n    c[0] = 1;\n}\n",
    "src/api/matmul.c": '#include "../cpu/matmul/kernel.h"\n#include <quern/base.h>\n',
    "cli/main.c":
        "#include <quern/base.h>\n#include <stdio.h>\nint main(void)\n{\n    return 0;\n}\n",
    "test/api/matmul.c": '#include <quern/base.h>\n#include "harness/guard.h"\n',
    "test/harness/guard.h": '#include "base/half.h"\n',
}


class Planted(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.root)
        for path, text in CLEAN.items():
            self.write(path, text)
        os.makedirs(os.path.join(self.root, "docs"))
        shutil.copy(os.path.join(TOOLS, "..", "docs", "names.md"), os.path.join(self.root, "docs"))

    def write(self, path, text):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(LICENCE + text)

    def add(self, path, text):
        self.write(path, CLEAN.get(path, "") + text)

    def check(self, tool, *arguments):
        return subprocess.run(
            [sys.executable, os.path.join(TOOLS, tool), "--root", self.root, *arguments],
            capture_output=True, text=True, check=False)

    def passes(self, tool):
        result = self.check(tool)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def finds(self, tool, *words):
        result = self.check(tool)
        self.assertEqual(result.returncode, 1, f"{tool} found nothing")
        for word in words:
            self.assertIn(word, result.stdout)
        return result.stdout

    def compile(self, *sources):
        """An archive and a shared library of the sources; both paths."""
        objects = []
        for path in sources:
            objects.append(os.path.join(self.root, os.path.basename(path) + ".o"))
            subprocess.run(["cc", "-std=c11", "-O1", "-fPIC", "-c", "-o", objects[-1],
                            os.path.join(self.root, path)], check=True)
        archive = os.path.join(self.root, "lib.a")
        shared = os.path.join(self.root, "lib.so")
        subprocess.run(["ar", "rcs", archive, *objects], check=True)
        subprocess.run(["cc", "-shared", "-o", shared, *objects], check=True)
        return archive, shared


class Layers(Planted):
    def test_clean_tree_passes(self):
        self.passes("check_layers.py")

    def test_includes(self):
        for path, text, word in (
                ("src/base/half.h", '#include "../quant/canonical.h"\n', "src/base may not"),
                ("src/quant/canonical.h", '#include "cpu/matmul/kernel.h"\n', "src/quant may not"),
                ("src/checkpoint/a.c", '#include "../cpu/matmul/kernel.h"\n', "src/checkpoint"),
                ("src/ref/matmul.c", '#include "../cpu/matmul/kernel.h"\n', "src/ref may not"),
                ("cli/main.c", '#include "../src/base/half.h"\n', "cli may not include src/base"),
                ("test/api/matmul.c", '#include "base/half.h"\n', "test/api may not include"),
                ("src/api/matmul.c", '#include "../../test/harness/guard.h"\n', "src/api may not"),
                ("src/api/matmul.c", '#include "../cpu/matmul/scalar.c"\n', "no file includes"),
                ("src/cpu/matmul/x86_avx2.c", "#include <stdio.h>\n", "a kernel file includes"),
                ("src/cpu/matmul/x86_avx2.c", '#include "../../quant/canonical.h"\n', "a kernel"),
                ("src/cuda/matmul/w4_sm80.cu", '#include "../../base/half.h"\n', "a CUDA file"),
                ("src/nowhere/x.c", '#include "../base/half.h"\n', "has no place"),
                ("include/quern/base.h", "#include <stdio.h>\n", "a public header includes"),
                ("include/quern/base.h", '#include "../../src/base/half.h"\n', "include may not")):
            with self.subTest(path=path, text=text):
                self.add(path, text)
                self.finds("check_layers.py", path, word)
                if path in CLEAN:
                    self.write(path, CLEAN[path])
                else:
                    os.remove(os.path.join(self.root, path))

    def test_order_inside(self):
        """Folders of src/cpu have an order; contracts of kernels stand below all of them."""
        self.write("src/cpu/matmul/driver.h", "")
        self.write("src/cpu/conv/conv.h", "")
        for path, target, fine in (("src/cpu/conv/conv.c", "../matmul/driver.h", True),
                                   ("src/cpu/rows/a.c", "../matmul/kernel.h", True),
                                   ("src/cpu/rows/a.c", "../matmul/driver.h", False),
                                   ("src/cpu/matmul/a.c", "../conv/conv.h", False)):
            with self.subTest(path=path, target=target):
                self.write(path, f'#include "{target}"\n')
                if fine:
                    self.passes("check_layers.py")
                else:
                    self.finds("check_layers.py", path, "stands above it")
                os.remove(os.path.join(self.root, path))

    def test_named_in_one_file(self):
        for body in ("malloc(1);", "free(p);", "calloc(1, 1);"):
            with self.subTest(body=body):
                self.write("src/api/matmul.c", f"void qni_a(void *p)\n{{\n    {body}\n}}\n")
                self.finds("check_layers.py", "one file only", "src/base/alloc.c")
        self.write("src/api/matmul.c", "void qni_a(int a)\n{\n    o->free(a); /* malloc */\n}\n")
        self.passes("check_layers.py")
        for first, second in (("fopen", "open(p"), ("mmap", "mmap"),
                              ("pthread_create", "pthread_create"), ("__cpuid", "getauxval")):
            with self.subTest(name=first):
                self.write("src/base/a.c", f"void qni_a(void)\n{{\n    {first}(1);\n}}\n")
                self.write("src/cpu/b.c", f"void qni_b(void)\n{{\n    {second}(1);\n}}\n")
                self.finds("check_layers.py", "src/base/a.c", "src/cpu/b.c")

    def test_never(self):
        for body in ('getenv("X");', 'printf("x");', "fputc(1, stderr);", "abort();", "exit(1);",
                     "assert(p);"):
            with self.subTest(body=body):
                self.write("src/api/matmul.c", f"void qni_a(void *p)\n{{\n    {body}\n}}\n")
                self.finds("check_layers.py", "the library never")
        self.write("src/api/matmul.c",
                   '/* printf( */\nstatic const char *a = "exit(1)";\nint qni_snprintf(int);\n'
                   "void f(int a) __attribute__((format(printf, 1, 2)));\n")
        self.passes("check_layers.py")

    def test_objects(self):
        self.write("src/cpu/matmul/x86_avx2.c",
                   "int strcmp(const char *, const char *);\n"
                   "int qni_k(const char *a)\n{\n    return strcmp(a, a + 1);\n}\n")
        self.write("src/base/state.c",
                   "#include <stdio.h>\nint qni_counter = 3;\nstatic int hidden;\n"
                   "const char *const qni_names[] = {\"a\"};\n"
                   "int qni_next(void)\n{\n    puts(\"x\");\n    return hidden++;\n}\n")
        archive, shared = self.compile("src/cpu/matmul/x86_avx2.c", "src/base/state.c")
        result = self.check("check_layers.py", "--archive", archive, "--shared", shared)
        self.assertIn("qni_counter in .data: no mutable globals", result.stdout)
        self.assertIn("hidden in .bss: no mutable globals", result.stdout)
        self.assertNotIn("qni_names", result.stdout)
        self.assertIn("calls strcmp: a kernel", result.stdout)
        self.assertIn("imports puts", result.stdout)


class Names(Planted):
    def test_clean_tree_passes(self):
        self.passes("check_names.py")

    def test_rows(self):
        inc = "src/cpu/matmul/kernels.inc"
        for row, word in (
                ("qni_matmul_f32_q4n16_mr4_haswell, QN_ISA_AVX2, F32, Q4N16, 4", "no isa at"),
                ("qni_gemm_f32_q4n16_mr4_avx2, QN_ISA_AVX2, F32, Q4N16, 4", "no op at"),
                ("matmul_f32_q4n16_mr4_avx2, QN_ISA_AVX2, F32, Q4N16, 4", "begin with qni_"),
                ("qni_matmul_f32_q4n16_mr04_avx2, QN_ISA_AVX2, F32, Q4N16, 4", "no variant at"),
                ("qni_matmul_f32_q4n16_mr8_avx2, QN_ISA_AVX512, F32, Q4N16, 8", "name says"),
                ("qni_matmul_f32_q4n16_mr8_avx2, QN_ISA_AVX2, BF16, Q4N16, 8", "its reads is BF16"),
                ("qni_matmul_f32_q4n16_mr8_avx2, QN_ISA_AVX2, F32, Q8N16, 8", "its layout is Q8"),
                ("qni_matmul_f32_q4n16_mr8_avx2, QN_ISA_AVX2, F32, Q4N16, 4", "its mr is 4"),
                ("qni_matmul_f32_q4n16_mr4_avx2, QN_ISA_AVX2, F32, Q4N16, 4", "listed twice")):
            with self.subTest(row=row):
                self.add(inc, f"QNI_MATMUL_KERNEL({row})\n")
                self.finds("check_names.py", inc, word)

    def test_kernel_files(self):
        self.add("src/cpu/matmul/scalar.c", "void qni_matmul_f32_q4n16_mr4_avx2(float *c);\n")
        self.finds("check_names.py", "src/cpu/matmul/scalar.c", "of ISA avx2 has its own file")
        self.write("src/cpu/matmul/scalar.c", "void qni_matmul_f32_q4n16_mr2_scalar(float *c);\n")
        self.finds("check_names.py", "has no row")

    def test_words(self):
        for path, text, word in (
                ("src/base/half.h", "typedef unsigned half_t;\n", "no _t names"),
                ("src/base/half.h", "typedef struct x *handle;\n", "never hide a *"),
                ("include/quern/base.h", "QN_API int quern_version(void);\n", "is qn_noun_verb"),
                ("include/quern/base.h", "#define VERSION 1\n", "begins with QN_"),
                ("src/api/matmul.c", "static int qni_a(void)\n{\n    return 1;\n}\n", "no prefix")):
            with self.subTest(text=text):
                self.add(path, text)
                self.finds("check_names.py", path, word)
                self.write(path, CLEAN[path])
        self.add("src/base/half.h", "typedef int (*fn)(void *p);\n"
                                    "typedef struct a {\n    int *p;\n} a;\n")
        self.passes("check_names.py")

    def test_plain_words(self):
        path = "src/cpu/matmul/x86_avx2.c"
        for text, word in (
                ("/* Weights are lessened here. */\nstatic int a;\n", "'lessened'"),
                ("/* Sums that\n * are made of what is\n * left. */\nstatic int a;\n",
                 "'what is left'"),
                ("static int is_tame;\n", "is_tame"),
                ("static int some;\n", "some"),
                ("struct piece {\n    int n;\n};\n", "say of what"),
                ("static void look(void)\n{\n}\n", "say of what"),
                ("/* of the rows of a block. */\nstatic int a;\n", "begins with a capital"),
                ("/* Rows of a block */\nstatic int a;\n", "ends with a full stop"),
                ("/* The same of pairs. */\nstatic int a;\n", "stands on its own"),
                ("/* Of a block. */\nstatic int a;\n", "stands on its own"),
                ("/* Cuts rows as tiles.h says. */\nstatic int a;\n", "no tiles.h")):
            with self.subTest(text=text):
                self.add(path, text)
                self.finds("check_names.py", path, word)
                self.write(path, CLEAN[path])
        self.add(path, "/* n rows of a panel: kernel.h. */\n"
                       "static void row_tile(int n)\n{\n    (void)n;\n}\n"
                       "/* What a row reads:\n *     x   bytes */\n"
                       "struct row_piece {\n    int n;\n};\n")
        self.passes("check_names.py")
        self.add("src/api/matmul.c", "/* Says what is left. */\nstatic int some;\n")
        self.passes("check_names.py")
        self.add("src/api/matmul.c", "/* The same of pairs. */\nstatic int a;\n")
        self.finds("check_names.py", "src/api/matmul.c", "stands on its own")

    def test_symbols(self):
        self.write("src/base/a.c", "int qni_fine(void)\n{\n    return 1;\n}\n"
                                   "int helper(void)\n{\n    return 1;\n}\n")
        archive, shared = self.compile("src/base/a.c")
        result = self.check("check_names.py", "--archive", archive, "--shared", shared)
        self.assertIn("lib.a: helper: a global symbol", result.stdout)
        self.assertNotIn("lib.a: qni_fine", result.stdout)
        self.assertIn("lib.so: qni_fine: an exported symbol", result.stdout)


class Sizes(Planted):
    def test_clean_tree_passes(self):
        self.passes("check_sizes.py")

    def test_limits(self):
        body = "    c[0] += 1;\n" * 121
        self.write("src/base/long.c", f"void qni_long(int *c)\n{{\n{body}}}\n")
        self.finds("check_sizes.py", "src/base/long.c:2: qni_long: 124 lines")
        # The same length is fine in a kernel file, twice that is not.
        os.remove(os.path.join(self.root, "src/base/long.c"))
        self.write("src/cpu/matmul/x86_avx2.c", f"void qni_long(int *c)\n{{\n{body}}}\n")
        self.passes("check_sizes.py")
        self.write("src/cpu/matmul/x86_avx2.c", f"void qni_long(int *c)\n{{\n{body * 3}}}\n")
        self.finds("check_sizes.py", "the limit is 250")

    def test_file(self):
        self.write("src/base/big.h", "\n" * 1000)
        self.finds("check_sizes.py", "src/base/big.h: 1001 lines")

    def test_parameters(self):
        list_of = ", ".join(f"int a{i}" for i in range(9))
        self.write("src/base/wide.c", f"static int wide({list_of})\n{{\n    return a0;\n}}\n")
        self.finds("check_sizes.py", "wide: 9 parameters")
        list_of = ",\n".join(f"int (*a{i})(int, int)" for i in range(8))
        self.write("src/base/wide.c", f"static int wide({list_of})\n{{\n    return 0;\n}}\n")
        self.passes("check_sizes.py")

    def test_lines(self):
        for text, word in (("/* " + "x" * 100 + " */\n", "columns"), ("int a; \n", "blanks at"),
                           ("\tint a;\n", "a tab")):
            with self.subTest(word=word):
                self.write("src/base/line.h", text)
                self.finds("check_sizes.py", "src/base/line.h:2", word)
        with open(os.path.join(self.root, "src/base/line.h"), "w", encoding="utf-8") as file:
            file.write("int a;\n")
        self.finds("check_sizes.py", "the first line is the licence")

    def test_archive(self):
        self.write("src/base/blob.c",
                   f"const char qni_blob[{check_sizes.ARCHIVE_BYTES}] = {{1}};\n")
        archive, _ = self.compile("src/base/blob.c")
        result = self.check("check_sizes.py", "--archive", archive)
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"the limit is {check_sizes.ARCHIVE_BYTES}", result.stdout)


class Links(Planted):
    def test_links_and_includes(self):
        for text, word in (("[a](nowhere.md)\n", "nowhere.md, which is not there"),
                           ("# One two\n[a](#one-three)\n", "no such heading"),
                           ("```{literalinclude} gone.c\n```\n", "includes gone.c"),
                           ('```{literalinclude} a.c\n:end-before: "no such line"\n```\n',
                            "no line with")):
            with self.subTest(text=text):
                self.write("docs/a.c", "int a;\n")
                self.write("docs/page.md", text)
                self.finds("check_links.py", "docs/page.md", word)
        self.write("docs/page.md", "# One `two`\n[a](#one-two) [b](a.c) [c](https://x.org/y)\n"
                   '```{literalinclude} a.c\n:end-before: "int a"\n```\n')
        self.passes("check_links.py")


class Progress(unittest.TestCase):
    """tools/progress.sh, which build.sh and check.sh use."""

    def shell(self, script, **more):
        return subprocess.run(["bash", "-uc", f". '{TOOLS}/progress.sh'\n{script}"], text=True,
                              capture_output=True, timeout=60, check=True, **more)

    def test_lines_while_silent(self):
        out = self.shell("words() { echo 'step 3 of 9'; }\nprogress_begin 0.2 words\nsleep 2\n"
                         "progress_end\necho end\nsleep 1").stdout
        lines = out.strip().split("\n")
        self.assertGreater(len(lines), 3)
        self.assertRegex(lines[0], r"^step 3 of 9, 0:0\d min$")
        self.assertEqual(lines[-1], "end")  # and none after it

    def test_reasons(self):
        log = ("\t 12/90 Test  #3: unit.half ...   Passed\n"
               "ERROR: 3 is not 4\nAssertionError: 5 != 6\n"
               "The following tests FAILED:\n\t  7 - unit.base (Failed)\n"
               "\t  9 - cli.demo (Timeout)\n"
               "Errors while running CTest\n")
        with tempfile.NamedTemporaryFile("w", suffix=".log") as file:
            file.write(log)
            file.flush()
            out = self.shell(f"why_it_failed {file.name}").stdout
        for words in ("unit.base (Failed)", "cli.demo (Timeout)", "ERROR: 3 is not 4", "5 != 6"):
            self.assertIn(words, out)
        self.assertNotIn("unit.half", out)


if __name__ == "__main__":
    unittest.main()
