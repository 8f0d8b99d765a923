# SPDX-License-Identifier: Apache-2.0
"""The package around the operations: the ABI as the C compiler has it, examples, the command."""
import contextlib
import ctypes
import doctest
import importlib
import io
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import quern
from quern import _abi, _library, errors

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def has(module):
    """What some of the package's modules need besides numpy."""
    try:
        importlib.import_module(module)
        return True
    except ImportError:
        return False


class Abi(unittest.TestCase):
    @unittest.skipIf(shutil.which("cc") is None, "no C compiler here")
    def test_structs_are_those_of_the_compiler(self):
        sys.path.insert(0, os.path.join(ROOT, "tools"))
        import gen_abi
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "layout.c"), os.path.join(folder, "layout")
            with open(source, "w", encoding="utf-8") as file:
                file.write(gen_abi.layout(ROOT))
            subprocess.run(["cc", "-I", os.path.join(ROOT, "include"), "-o", program, source],
                           check=True)
            lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        seen = 0
        for line in lines.splitlines():
            name, *numbers = line.split()
            struct, _, field = name.partition(".")
            kind = getattr(_abi, struct)
            found = [ctypes.sizeof(kind)]
            if field:
                found = [getattr(kind, field).offset, getattr(kind, field).size]
            self.assertEqual(found, [int(number) for number in numbers], name)
            seen += 1
        self.assertGreater(seen, 150)

    def test_every_function_is_there(self):
        with open(os.path.join(ROOT, "test", "abi", "symbols.txt"), encoding="utf-8") as file:
            exported = {line.strip() for line in file if line.startswith("qn_")}
        self.assertEqual(exported, set(_abi.FUNCTIONS))

    def test_statuses(self):
        for name, (value, sentence) in _abi.STATUSES.items():
            self.assertEqual(_library.lib.qn_status_name(value).decode(), name)
            self.assertEqual(_library.lib.qn_status_text(value).decode(), sentence)
            if value:
                kind = errors.BY_STATUS[value]
                self.assertEqual((kind.status, kind.name), (value, name))
                self.assertTrue(issubclass(kind, quern.QuernError))
        with self.assertRaises(errors.NotFoundError) as caught:
            _library.fail(errors.NotFoundError.status, "why", 7)
        self.assertEqual((str(caught.exception), caught.exception.offset), ("why", 7))


class Examples(unittest.TestCase):
    def test_docstrings(self):
        names = {name: getattr(quern, name) for name in quern.__all__}
        tried = 0
        for module in pkgutil.iter_modules(quern.__path__):
            if module.name == "__main__" or (module.name in ("torch", "transformers")
                                             and not has(module.name)):
                continue
            found = doctest.testmod(importlib.import_module(f"quern.{module.name}"),
                                    extraglobs=names, optionflags=FLAGS)
            self.assertEqual(found.failed, 0)
            tried += found.attempted
        self.assertEqual(doctest.testmod(quern, optionflags=FLAGS).failed, 0)
        self.assertGreater(tried, 40)

    def test_pages(self):
        """Python in README.md and docs/python.md runs as it stands, one page after the other."""
        there = os.getcwd()
        for page in ("README.md", os.path.join("docs", "python.md")):
            with open(os.path.join(ROOT, page), encoding="utf-8") as file:
                blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
            self.assertTrue(blocks, page)
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                try:
                    names = {}
                    for block in blocks:
                        if "import torch" in block and not self.has_torch():
                            continue
                        with contextlib.redirect_stdout(io.StringIO()):
                            exec(compile(block, page, "exec"), names)
                finally:
                    os.chdir(there)

    @staticmethod
    def has_torch():
        try:
            import torch  # noqa: F401
        except ImportError:
            return False
        return True

    def test_everything_says_what_it_is(self):
        for name in quern.__all__:
            self.assertTrue(getattr(quern, name).__doc__, name)
        folder = os.path.dirname(quern.__file__)
        self.assertTrue(os.path.exists(os.path.join(folder, "py.typed")))


class Command(unittest.TestCase):
    def run_command(self, *words):
        return subprocess.run([sys.executable, "-m", "quern", *words], capture_output=True,
                              text=True, check=False, timeout=300)

    @unittest.skipIf(_library.native("quern") is None, "this library came without the command")
    def test_command(self):
        done = self.run_command("--version")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split()[:2], ["quern", quern.__version__])
        done = self.run_command("nonsense")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nonsense", done.stderr)


if __name__ == "__main__":
    unittest.main()
