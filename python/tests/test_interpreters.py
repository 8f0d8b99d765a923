# SPDX-License-Identifier: Apache-2.0
"""A second interpreter in the process, a Python without a lock, a folder that lacks a shard, and
conversion by the command."""
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import types
import unittest

import numpy as np

import quern
from quern import _library, errors

RNG = np.random.default_rng(5)


class Interpreters(unittest.TestCase):
    def test_a_second_interpreter(self):
        """It computes the same bits; or numpy refuses to be loaded twice, and quern says so."""
        text = """
            try:
                import _interpreters as sub
            except ImportError:
                import _xxsubinterpreters as sub
            import numpy as np, quern
            w = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
            x = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
            want = quern.matmul(x, quern.quantize(w).pack()).tobytes().hex()
            inner = '''
            import warnings; warnings.simplefilter("ignore")
            try:
                import quern, numpy as np
            except ImportError as why:
                print("refused:", why)
            else:
                w = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
                x = np.random.default_rng(1).normal(size=(3, 256)).astype(np.float32)
                for _ in range(5):
                    y = quern.matmul(x, quern.quantize(w).pack()).tobytes().hex()
                    print("same" if y == WANT else "other bits")
            '''
            import textwrap
            other = sub.create()
            sub.run_string(other, "WANT = " + repr(want) + "\\n" + textwrap.dedent(inner))
            sub.destroy(other)
            again = quern.matmul(x, quern.quantize(w).pack()).tobytes().hex()
            print("and here", again == want)
        """
        import textwrap
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True,
                              text=True, check=False, timeout=300)
        if "No module named '_xxsubinterpreters'" in done.stderr:
            self.skipTest("this Python has no interpreters module")
        lines = done.stdout.splitlines()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(lines[-1], "and here True")
        if lines[0].startswith("refused: "):
            self.assertRegex(lines[0], "quern needs numpy, which cannot be imported")
        else:
            self.assertEqual(lines[:-1], ["same"] * 5)

    @unittest.skipUnless(sysconfig.get_config_var("Py_GIL_DISABLED"), "this Python has a lock")
    def test_without_the_lock(self):
        self.assertFalse(sys._is_gil_enabled())
        self.hammer()

    def test_threads_that_share_everything(self):
        self.hammer()

    def hammer(self):
        """Weights, prepared calls and contexts shared by threads that make and drop more."""
        weight = quern.quantize(RNG.normal(size=(32, 128)).astype(np.float32), "int4:g32")
        packed = weight.pack()
        xs = [RNG.normal(size=(1 + i % 3, 128)).astype(np.float32) for i in range(6)]
        wanted = [quern.matmul(x, packed).tobytes() for x in xs]
        failed, start = [], threading.Barrier(6)

        def work(i):
            start.wait()
            try:
                for turn in range(150):
                    x = xs[(i + turn) % 6]
                    fresh = weight.pack() if turn % 25 == 0 else packed
                    if quern.matmul(x, fresh).tobytes() != wanted[(i + turn) % 6]:
                        failed.append("other bits")
                    if quern.default_context() is not packed.ctx:
                        failed.append("two default contexts")
            except BaseException as why:
                failed.append(repr(why))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])


class Folders(unittest.TestCase):
    def test_a_missing_shard(self):
        with tempfile.TemporaryDirectory() as folder:
            quern.save(f"{folder}/one.safetensors", {"a": np.ones(3, np.float32)})
            with open(f"{folder}/model.safetensors.index.json", "w") as file:
                json.dump({"metadata": {}, "weight_map": {"a": "one.safetensors",
                                                          "b": "two.safetensors"}}, file)
            self.assertRaisesRegex(errors.QuernError, "two.safetensors", quern.load, folder)

    def test_columns_that_groups_do_not_divide(self):
        """2880 columns are 22 groups of 128 and one of 64."""
        w = RNG.normal(size=(16, 2880)).astype(np.float32)
        made = quern.quantize(w, "int4:g128")
        self.assertEqual((made.n_groups, made.scale.shape), (23, (16, 23)))
        x = RNG.normal(size=(3, 2880)).astype(np.float32)
        np.testing.assert_allclose(quern.matmul(x, made.pack()), x @ made.dequantize().T,
                                   atol=2e-3)


@unittest.skipIf(_library.native("quern") is None, "this library came without the command")
class Convert(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.weight = quern.quantize(RNG.normal(size=(32, 128)).astype(np.float32), "int4:g32")
        self.path = os.path.join(self.place.name, "model.safetensors")
        quern.save(self.path, {"m.weight": self.weight, "norm.weight": np.ones(8, np.float32)})

    def test_there_and_back(self):
        folder, back = (os.path.join(self.place.name, name) for name in ("ct", "back.safetensors"))
        with open(os.path.join(self.place.name, "config.json"), "w") as file:
            json.dump({"model_type": "llama"}, file)
        quern.convert(self.path, folder, to="ct", config=self.place.name)
        made = quern.load(folder)
        self.assertEqual(made.kind_of("m.weight"), "weight")
        quern.convert(folder, back, exclude="norm*")
        again = quern.load(back)
        self.assertEqual(sorted(again), ["m.weight"])
        np.testing.assert_array_equal(again["m.weight"].dequantize(),
                                      made["m.weight"].dequantize())

    def test_progress(self):
        """A function and a bar; of a file, a folder and a model of ONNX."""
        with open(os.path.join(self.place.name, "config.json"), "w") as file:
            json.dump({"model_type": "llama"}, file)
        for to in ("quern", "ct", "onnx"):
            out, seen = os.path.join(self.place.name, f"out.{to}"), []
            exclude = "norm*" if to == "onnx" else ()
            quern.convert(self.path, out, to=to, exclude=exclude, config=self.place.name,
                          progress=lambda *at: seen.append(at))
            modules = 1 if to == "onnx" else 2
            self.assertEqual(seen, [(i + 1, modules) for i in range(modules)])
        bar = types.SimpleNamespace(total=None, n=0)
        bar.update = lambda more: setattr(bar, "n", bar.n + more)
        quern.convert(self.path, os.path.join(self.place.name, "bar"), progress=bar)
        self.assertEqual((bar.n, bar.total), (2, 2))

    def many(self):
        """A checkpoint whose steps take more text than a pipe holds: the command waits for its
        reader, and cannot be done before it is stopped."""
        path = os.path.join(self.place.name, "many.safetensors")
        quern.save(path, {f"m{i:04}.{'layer' * 20}.weight": self.weight for i in range(2000)})
        return path

    def test_stopped(self):
        """By what the callback raises and by ^C: no file by that name; resumed, it is whole."""
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, handler)

        def fail(done, total):
            raise ZeroDivisionError("enough")

        def interrupt(done, total):
            os.kill(os.getpid(), signal.SIGINT)

        path = self.many()
        for kind, stop in ((ZeroDivisionError, fail), (KeyboardInterrupt, interrupt)):
            out = os.path.join(self.place.name, kind.__name__)
            self.assertRaises(kind, quern.convert, path, out, progress=stop)
            self.assertFalse(os.path.exists(out))
            seen = []
            quern.convert(path, out, resume=True, progress=lambda *at, seen=seen: seen.append(at))
            self.assertEqual(seen[-1], (2000, 2000))
            self.assertFalse(os.path.exists(out + ".part"))
            made = quern.load(out)
            self.assertEqual(len(made), 2000)
            np.testing.assert_array_equal(made[sorted(made)[-1]].codes, self.weight.codes)

    def test_bad_with_progress(self):
        seen = []
        with self.assertRaisesRegex(errors.QuernError, "none_such"):
            quern.convert("/none_such", self.path + "2", progress=lambda *at: seen.append(at))
        self.assertEqual(seen, [])

    def test_bad(self):
        other = os.path.join(self.place.name, "other.safetensors")
        quern.save(other, {"a": np.ones(1, np.float32)})
        for words, call in (
                ("none_such", lambda: quern.convert("/none_such", self.path + "2")),
                ("it is the input", lambda: quern.convert(self.path, self.path)),
                ("exist", lambda: quern.convert(self.path, other)),
                ("no f16 or bf16", lambda: quern.convert(self.path, self.path + "2", to="gptq_v2",
                                                         config=self.place.name)),
                ("none", lambda: quern.convert(self.path, self.path + "2", to="none")),
                ("zeros|v9", lambda: quern.convert(self.path, self.path + "2", gptq_zeros="v9"))):
            with self.subTest(words):
                self.assertRaisesRegex(errors.QuernError, words, call)
        self.assertFalse(os.path.exists(self.path + "2"))


if __name__ == "__main__":
    unittest.main()
