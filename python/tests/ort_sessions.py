# SPDX-License-Identifier: Apache-2.0
"""The provider in a process: registered, refused, with options, in many sessions and threads."""
import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy as np

from ort_models import Case, claims, model, node, ours, peer, plain_options


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Sessions(Case):
    def setUp(self):
        super().setUp()
        self.x = self.codes(33, 96)
        self.made = model([node("MatMulInteger", "x w z", "i"), node("Cast", "i", "f", to=1),
                           node("Mul", "f c", "y")], {"x": self.x}, "y:f32",
                          {"w": self.codes(96, 80, kind="i8"), "z": np.array(9, np.uint8),
                           "c": np.array(0.01, np.float32)})
        self.wanted = peer(self.made).run(None, {"x": self.x})

    def test_registering_twice(self):
        import quern.ort
        for _ in range(3):
            self.assertEqual(quern.ort.register(), "QuernExecutionProvider")
        self.assertTrue(quern.ort.is_registered())

    def test_threads(self):
        for threads in (1, 2, 4):
            session = ours(self.made, threads=threads)
            for _ in range(5):
                self.same(session.run(None, {"x": self.x}), self.wanted)
        for of_session in (1, 3):
            import onnxruntime
            import quern.ort
            options = quern.ort.session_options(plain_options(of_session))
            session = onnxruntime.InferenceSession(self.made.SerializeToString(), options)
            self.same(session.run(None, {"x": self.x}), self.wanted)

    def test_no_thread_is_hidden(self):
        """A session of one thread starts none; threads=3 starts the two that it says."""
        def count():
            return len(os.listdir("/proc/self/task"))
        import onnxruntime
        import quern.ort
        for options, more in (({}, 0), ({"threads": 1}, 0), ({"threads": 3}, 2)):
            before = count()
            session = onnxruntime.InferenceSession(
                self.made.SerializeToString(),
                quern.ort.session_options(plain_options(1), **options))
            session.run(None, {"x": self.x})
            self.assertEqual(count() - before, more, options)
            del session
            gc.collect()
            self.assertEqual(count(), before)

    def test_one_session_in_many_threads(self):
        for options in ({}, {"threads": 2}):
            session, failed = ours(self.made, **options), []

            def work(session=session, failed=failed):
                for _ in range(40):
                    found = session.run(None, {"x": self.x})
                    if not np.array_equal(found[0], self.wanted[0]):
                        failed.append(found)
            threads = [threading.Thread(target=work) for _ in range(4)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            self.assertEqual(len(failed), 0)

    def test_many_sessions(self):
        sessions = [ours(self.made) for _ in range(8)]
        for session in sessions + sessions[::-1]:
            self.same(session.run(None, {"x": self.x}), self.wanted)

    def test_nothing_leaks(self):
        large = model([node("MatMulInteger", "x w", "y")], {"x": self.x}, "y:i32",
                      {"w": self.codes(96, 1024, kind="i8")})

        def round_trip():
            session = ours(large)
            for rows in (1, 33, 7):
                session.run(None, {"x": self.x[:rows]})
        for _ in range(20):
            round_trip()
        gc.collect()
        before = resident()
        for _ in range(150):
            round_trip()
        gc.collect()
        # A copy of the packed weights a session alone would be 14 MB.
        self.assertLess(resident() - before, 4 << 20)
        session = ours(self.made)
        session.run(None, {"x": self.x})
        before = resident()
        for _ in range(2000):
            session.run(None, {"x": self.x})
        self.assertLess(resident() - before, 1 << 20)

    BAD = (({"threads": "-1"}, "option threads is '-1'"),
           ({"threads": "many"}, "option threads is 'many'"),
           ({"cut": "5000"}, "option cut is '5000'"),
           ({"layout": "chw"}, "option layout is 'chw': nhwc or nchw"),
           ({"log": "yes"}, "option log is 'yes': 0 or 1"),
           ({"strategy": "fast"}, "strategy"),
           ({"strategy": "int8-static"}, "option strategy is .?int8-static"),
           ({"quantize": "int9:g3"}, "int9"))

    def test_bad_options(self):
        for options, why in self.BAD:
            with self.assertRaisesRegex(ValueError, why):
                ours(self.made, **options)
        with self.assertRaisesRegex(TypeError, "no option 'thread'"):
            ours(self.made, thread=1)

    def test_bad_options_of_programs_without_the_package(self):
        import onnxruntime
        import quern.ort
        if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32):
            self.skipTest("older runtimes go on without a provider that refuses")
        quern.ort.register()
        devices = [one for one in onnxruntime.get_ep_devices() if one.ep_name == quern.ort.NAME]
        for wrong, why in self.BAD:
            options = plain_options()
            options.add_provider_for_devices(devices, wrong)
            with self.assertRaisesRegex(Exception, why):
                onnxruntime.InferenceSession(self.made.SerializeToString(), options)

    def test_every_session(self):
        program = (
            "import sys, numpy, onnxruntime, quern.ort\n"
            "quern.ort.register(every_session=True, threads=1)\n"
            "s = onnxruntime.InferenceSession(sys.argv[1])\n"
            "t = onnxruntime.InferenceSession(sys.argv[1], None, ['CPUExecutionProvider'])\n"
            "o = onnxruntime.SessionOptions()\n"
            "u = [onnxruntime.InferenceSession(sys.argv[1], o) for _ in range(2)]\n"
            "for one in [s, t] + u: print(one.get_providers()[0])\n")
        path = os.path.join(self.enterContext(temporary()), "model.onnx")
        with open(path, "wb") as file:
            file.write(self.made.SerializeToString())
        found = subprocess.run([sys.executable, "-c", program, path], capture_output=True,
                               text=True, check=False)
        self.assertEqual(found.stdout.split(), ["QuernExecutionProvider"] * 4, found.stderr)

    def test_the_log_says_what_is_left_and_why(self):
        program = (
            "import sys, onnxruntime, quern.ort\n"
            "onnxruntime.InferenceSession(sys.argv[1], quern.ort.session_options(log=True))\n")
        made = model([node("MatMulInteger", "x w", "y")],
                     {"x": self.codes(3, 8), "w": self.codes(8, 4)}, "y:i32", {})
        path = os.path.join(self.enterContext(temporary()), "model.onnx")
        for one, words in ((made, "left to ONNX Runtime: MatMulInteger (y): the weights are not"),
                           (self.made, "claimed: MatMulInteger (i) and 2 more nodes")):
            with open(path, "wb") as file:
                file.write(one.SerializeToString())
            found = subprocess.run([sys.executable, "-c", program, path], capture_output=True,
                                   text=True, check=True)
            self.assertIn(words, found.stderr)

    def test_the_provider_by_its_name(self):
        """Runtimes that take registered providers by name."""
        import onnxruntime
        import quern.ort
        if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32):
            self.skipTest("not every runtime takes a registered provider by its name")
        quern.ort.register()
        session = onnxruntime.InferenceSession(
            self.made.SerializeToString(), plain_options(),
            providers=[("QuernExecutionProvider", {"threads": "1"}), "CPUExecutionProvider"])
        self.assertEqual(len(claims(session)), 1)
        self.same(session.run(None, {"x": self.x}), self.wanted)


class OldRuntime(Case):
    def test_a_runtime_without_the_interface_is_refused_with_a_sentence(self):
        """A runtime of our own making, whose newest interface is 22."""
        import quern.ort
        texts = []
        make = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(
            lambda code, text: texts.append((code, text)) or 1234)
        table = (ctypes.c_void_p * 1)(ctypes.cast(make, ctypes.c_void_p))
        get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
            lambda version: ctypes.addressof(table) if version <= 22 else None)
        words = ctypes.create_string_buffer(b"1.22.9")
        name = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(words))

        class Base(ctypes.Structure):
            _fields_ = [("get", type(get)), ("name", type(name))]
        library = ctypes.CDLL(quern.ort.library())
        library.CreateEpFactories.restype = ctypes.c_void_p
        factory, count = ctypes.c_void_p(), ctypes.c_size_t(7)
        status = library.CreateEpFactories(b"quern", ctypes.byref(Base(get, name)), None,
                                           ctypes.byref(factory), ctypes.c_size_t(1),
                                           ctypes.byref(count))
        self.assertEqual((status, count.value, factory.value), (1234, 0, None))
        self.assertEqual(texts[0][0], 9)
        self.assertIn(b"ONNX Runtime 1.22.9 has no interface 23", texts[0][1])
        self.assertIn(b"version 1.23 or newer is needed", texts[0][1])


def temporary():
    import tempfile
    return tempfile.TemporaryDirectory()
