# SPDX-License-Identifier: Apache-2.0
"""Several threads, fork(), ^C, and objects that go in any order."""
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import numpy as np

import quern

RNG = np.random.default_rng(11)


class Threads(unittest.TestCase):
    def test_one_context_many_threads(self):
        ctx = quern.Context(threads=2)
        weight = quern.quantize(RNG.normal(size=(64, 256)).astype(np.float32), ctx=ctx)
        w, failed = weight.pack(), []
        xs = [RNG.normal(size=(1 + i, 256)).astype(np.float32) for i in range(4)]
        wanted = [quern.matmul(x, w, strategy="int8-block").tobytes() for x in xs]

        def work(i):
            try:
                for turn in range(100):
                    at = (i + turn) % 4
                    y = quern.matmul(xs[at], w, strategy="int8-block")
                    if y.tobytes() != wanted[at]:
                        failed.append((i, turn))
                    if turn % 10 == 0:
                        with self.assertRaises(quern.errors.ShapeError):
                            quern.matmul(xs[at][:, 1:], w)
            except BaseException as why:
                failed.append(why)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_the_gil_is_given_up(self):
        """Another thread counts while the library quantizes: at least once in the time of it."""
        w = RNG.normal(size=(256, 1024)).astype(np.float32)
        counted, stop = [0], threading.Event()

        def count():
            while not stop.is_set():
                counted[0] += 1
                time.sleep(0)

        thread = threading.Thread(target=count)
        thread.start()
        try:
            deadline = time.monotonic() + 300
            moved = False
            while not moved and time.monotonic() < deadline:
                before = counted[0]
                quern.quantize(w, "int4:g32", method="search")
                moved = counted[0] > before + 10
        finally:
            stop.set()
            thread.join()
        self.assertTrue(moved)

    def test_reasons_are_those_of_the_thread(self):
        """A failed run tells why to the thread that made it, and to nobody later."""
        w = quern.quantize(np.ones((16, 64), np.float32), "int4:g32").pack()
        x = np.ones((3, 64), np.float32)
        with self.assertRaises(quern.errors.BadValueError) as caught:
            quern.grouped(x, [w], ids=[0, 9, 0])
        self.assertIn("9", str(caught.exception))

    def test_objects_in_a_circle(self):
        """The collector calls destructors in any order; contexts go last all the same."""
        for _ in range(20):
            ctx = quern.Context(threads=1)
            w = quern.quantize(np.ones((16, 64), np.float32), "int4:g32", ctx=ctx)
            p = w.pack()
            quern.matmul(np.ones((1, 64), np.float32), p)
            circle = {"w": w, "p": p, "ctx": ctx, "codes": w.codes,
                      "plan": quern.plan("matmul", p, x=(1, 64))}
            circle["me"] = circle
            del ctx, w, p, circle
            gc.collect()


class Fork(unittest.TestCase):
    def test_fork_after_import(self):
        w = quern.quantize(RNG.normal(size=(64, 256)).astype(np.float32)).pack()
        x = RNG.normal(size=(5, 256)).astype(np.float32)
        wanted = quern.matmul(x, w).tobytes()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                fresh = quern.Context(threads=2)
                again = quern.quantize(np.ones((8, 64), np.float32), "int4:g32", ctx=fresh)
                if quern.matmul(x, w).tobytes() == wanted and again.pack().shape == (8, 64):
                    status = 0
            finally:
                os._exit(status)
        deadline = time.monotonic() + 300
        done, status = os.waitpid(child, os.WNOHANG)
        while done == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
            done, status = os.waitpid(child, os.WNOHANG)
        if done == 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        self.assertEqual((done, status), (child, 0), "the child hangs or got other bits")
        self.assertEqual(quern.matmul(x, w).tobytes(), wanted)


class Interrupted(unittest.TestCase):
    WEIGHTS = RNG.normal(size=(4096, 1024)).astype(np.float32)

    def setUp(self):
        # Whoever runs the tests may have had SIGINT ignored, as shells do for their background.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def long_call(self, **how):
        """Takes a good part of a second, unless it is stopped."""
        return quern.quantize(self.WEIGHTS, "int3:g32", method="search", **how)

    def test_what_progress_raises_arrives(self):
        for kind in (KeyboardInterrupt, SystemExit, ZeroDivisionError):
            def stop(done, total, kind=kind):
                raise kind("enough")

            with self.assertRaisesRegex(kind, "enough"):
                self.long_call(progress=stop)

    def test_interrupt(self):
        """A real ^C, with a bar and without: the call ends early, and the handler is as before."""
        handler = signal.getsignal(signal.SIGINT)
        for progress in (None, lambda done, total: None):
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            try:
                with self.assertRaises(KeyboardInterrupt):
                    timer.start()
                    while True:
                        self.long_call(progress=progress)
            finally:
                timer.cancel()
                timer.join()
            self.assertIs(signal.getsignal(signal.SIGINT), handler)

    def test_a_handler_of_ones_own(self):
        called = []
        before = signal.signal(signal.SIGINT, lambda number, frame: called.append(number))
        try:
            def kill(done, total):
                os.kill(os.getpid(), signal.SIGINT)

            with self.assertRaises(quern.errors.CancelledError):
                self.long_call(progress=kill)
        finally:
            signal.signal(signal.SIGINT, before)
        self.assertEqual(called, [signal.SIGINT])

    def test_the_next_call_is_as_ever(self):
        with self.assertRaises(KeyboardInterrupt):
            self.long_call(progress=self.interrupt)
        self.assertEqual(quern.quantize(self.WEIGHTS[:8], "int4:g32").shape, (8, 1024))

    @staticmethod
    def interrupt(done, total):
        raise KeyboardInterrupt

    def test_another_process(self):
        """The program of a user who presses ^C ends as Python programs do."""
        text = ("import signal, numpy as np, quern\n"
                "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
                "w = np.random.default_rng(0).normal(size=(4096, 1024)).astype(np.float32)\n"
                "print('begins', flush=True)\n"
                "while True: quern.quantize(w, 'int3:g32', method='search')\n")
        with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as child:
            self.assertEqual(child.stdout.readline(), "begins\n")
            time.sleep(0.1)
            child.send_signal(signal.SIGINT)
            _, err = child.communicate(timeout=120)
        self.assertIn("KeyboardInterrupt", err)
        self.assertEqual(child.returncode, -signal.SIGINT)


if __name__ == "__main__":
    unittest.main()
