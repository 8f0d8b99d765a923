#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The quern command and its files: inputs that change while they are read, outputs that are in the
way, runs that an interruption cut in two.

    files.py QUERN [NAME...]
"""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

from command import (COMPLAINT, QUERN, Case, is_sanitized, normal, npy_write, quern,
                     quern_on_a_leash, safetensors)


class Inputs(Case):
    def ends_with_a_word(self, words, path, bytes_left):
        """The file is cut while its tensors are read; the last line names it."""
        process = quern_on_a_leash(*words)
        process.stderr.readline()
        os.truncate(path, bytes_left)
        err = process.communicate(timeout=280)[1]
        line = err.strip().split("\n")[-1]
        self.assertEqual(process.returncode, 3, (words, err))
        self.assertRegex(line, COMPLAINT)
        self.assertIn(path, line)
        self.assertEqual([name for name in os.listdir(".") if name.startswith("q.")], [])

    def test_shrinks_under_many_threads(self):
        """Whichever thread meets the end first: a sentence with the file's name, exit status 3, and
        nothing is left."""
        for attempt in range(6):
            for method in ("rtn", "search"):
                self.many("m.safetensors")
                self.ends_with_a_word(["quantize", "m.safetensors", "-o", "q.safetensors",
                                       "--method", method, "-t", "4"],
                                      "m.safetensors", 4096 + attempt * 65536)

    def test_shrinks_within_a_page(self):
        """The rest of the last page reads as zeros, and no signal comes."""
        self.many("m.safetensors")
        whole = os.path.getsize("m.safetensors")
        self.ends_with_a_word(["quantize", "m.safetensors", "-o", "q.safetensors", "-t", "2"],
                              "m.safetensors", whole - 100)

    def test_is_rewritten(self):
        """Of the same size, other bytes."""
        self.many("m.safetensors")
        process = quern_on_a_leash("quantize", "m.safetensors", "-o", "q.safetensors", "-t", "2")
        process.stderr.readline()
        with open("m.safetensors", "r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"ab")
        err = process.communicate(timeout=280)[1]
        self.assertEqual(process.returncode, 3, err)
        self.assertIn("m.safetensors: it was changed", err)
        self.assertFalse(os.path.exists("q.safetensors"))


    def checkpoint(self):
        """A checkpoint of two shards with weights that GPTQ has quantized."""
        os.makedirs("model", exist_ok=True)
        index = {}
        for shard in range(2):
            tensors = {}
            for layer in range(12):
                name = f"layers.{12 * shard + layer:02}.up"
                tensors[name + ".qweight"] = ("I32", [32, 512], [layer] * (32 * 512))
                tensors[name + ".qzeros"] = ("I32", [2, 64], [0x77777777] * 128)
                tensors[name + ".scales"] = ("F16", [2, 512], [1.0] * 1024)
                tensors[name + ".g_idx"] = ("I32", [256], [i // 128 for i in range(256)])
            safetensors(f"model/model-{shard}.safetensors", tensors)
            index.update({name: f"model-{shard}.safetensors" for name in tensors})
        with open("model/model.safetensors.index.json", "w", encoding="utf-8") as file:
            json.dump({"weight_map": index}, file)
        with open("model/config.json", "w", encoding="utf-8") as file:
            json.dump({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128,
                                               "desc_act": False, "sym": True}}, file)

    def test_a_checkpoint_shrinks(self):
        """Of a folder: it is the shard that is named."""
        for path in ("model/model-0.safetensors", "model/model-1.safetensors"):
            self.checkpoint()
            self.ends_with_a_word(["convert", "model", "-o", "q.safetensors", "-t", "2"], path,
                                  4096)
        os.remove("model/model-0.safetensors")

    def test_a_checkpoint_is_rewritten(self):
        self.checkpoint()
        quern("convert", "model", "-o", "good.safetensors", "-q")
        path = "model/model-1.safetensors"
        process = quern_on_a_leash("convert", "model", "-o", "q.safetensors", "-t", "2")
        process.stderr.readline()
        with open(path, "r+b") as file:
            file.seek(-2, os.SEEK_END)
            file.write(b"ab")
        err = process.communicate(timeout=280)[1]
        self.assertEqual(process.returncode, 3, err)
        self.assertIn(f"{path}: it was changed", err)
        self.assertFalse(os.path.exists("q.safetensors"))

    def test_verified_file_is_rewritten(self):
        """The pipe is full and verify waits: the first of its files changes meanwhile."""
        self.many("m.safetensors")
        quern("quantize", "m.safetensors", "-i", "*0*", "-o", "q.safetensors", "-q")
        with open("q.safetensors", "rb") as file, open("first.safetensors", "wb") as copy:
            copy.write(file.read())
        process = subprocess.Popen([QUERN, "verify", "first.safetensors",
                                    *["q.safetensors"] * 400, "--json"], pipesize=4096,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        os.truncate("first.safetensors", 4096)
        err = process.communicate(timeout=280)[1]
        self.assertEqual(process.returncode, 3, err)
        self.assertIn("first.safetensors: it was changed", err)


class Outputs(Case):
    """What is in the way of an output is found before the work."""

    def setUp(self):
        super().setUp()
        self.model()
        quern("quantize", "model.safetensors", "-o", "q.safetensors", "-q")
        npy_write("x.npy", [2, 160], normal(320))
        self.commands = {
            "quantize": ["quantize", "model.safetensors"],
            "pack": ["pack", "q.safetensors"],
            "run": ["run", "-w", "q.safetensors:layers.0.up.weight", "-x", "x.npy"]}
        self.before = sorted(os.listdir("."))

    def refused(self, out, status, says, *more):
        for name, words in self.commands.items():
            with self.subTest(command=name, out=out):
                line = self.complains(*words, "-o", out, *more, status=status, says=says)
                self.assertNotIn("[1/", line)

    def test_places(self):
        os.mkdir("folder")
        os.symlink("nowhere", "link")
        os.symlink("loop", "loop")
        for more in ([], ["--force"]):
            self.refused("link", 4, "symbolic link that leads nowhere", *more)
            self.refused("loop", 4, "leads nowhere", *more)
            self.refused("folder", 4, "it is a folder", *more)
            self.refused("none/x", 4, "no such file or folder", *more)
        self.refused("model.safetensors", 2, "model.safetensors", "--threads", "1")
        with open("mine", "w", encoding="utf-8") as file:
            file.write("mine")
        self.refused("mine", 2, "--force")
        os.symlink("nowhere", "other.part")
        os.mkfifo("piped.part")
        self.refused("other", 4, "part")
        self.refused("piped", 4, "regular")

    @unittest.skipIf(os.geteuid() != 0, "another user is needed")
    def test_shut_folder(self):
        os.mkdir("shut")
        os.chmod("shut", 0o555)
        os.chmod(".", 0o755)
        try:
            subprocess.run([QUERN, "--version"], check=True, capture_output=True,
                           preexec_fn=lambda: os.setuid(12345))
        except (OSError, subprocess.CalledProcessError):
            self.skipTest("another user cannot run the command")
        for words in self.commands.values():
            self.complains(*words, "-o", "shut/x", status=4, preexec_fn=lambda: os.setuid(12345),
                           says="shut/x: cannot be written in its folder: permission denied")

    def test_before_the_work(self):
        """Also where everything is packed once before the output begins."""
        os.mkdir("folder")
        words = ["pack", "q.safetensors", "-o", "folder", "--layout", "none"]
        self.complains(*words, status=4, says="it is a folder")

    def test_an_input(self):
        """By any name: hard links, links, the part file that would be emptied."""
        os.link("model.safetensors", "hard")
        os.symlink("model.safetensors", "soft")
        for out in ("model.safetensors", "./model.safetensors", "hard", "soft"):
            for more in ([], ["--force"], ["--resume"]):
                self.complains("quantize", "model.safetensors", "-o", out, *more, status=2,
                               says="it is the input model.safetensors")
        quern("convert", "model.safetensors", "-o", "c.safetensors", "-q")
        os.mkdir("folder")
        os.link("model.safetensors", "folder/model.safetensors")
        with open("folder/config.json", "w", encoding="utf-8") as file:
            file.write("{}")
        for model, out, says in (("model.safetensors", "hard", "model.safetensors"),
                                 ("folder", "soft", "folder/model.safetensors"),
                                 ("folder", "folder/config.json", "folder/config.json")):
            self.complains("convert", model, "-o", out, "--force", status=2,
                           says=f"it is the input {says}")
        self.complains("convert", "folder", "--to", "gguf", "-o", "hard", "--force", status=2,
                       says="it is the input folder/model.safetensors")
        os.link("q.safetensors", "p.part")
        self.complains("pack", "q.safetensors", "-o", "p", status=2, says="it is the input")
        self.complains(*self.commands["run"], "-o", "x.npy", "--force", status=2,
                       says="it is the input x.npy")
        safetensors("c.safetensors", {"layers.0.up.weight": ("F32", [2, 160], normal(320))})
        self.complains("quantize", "model.safetensors", "-i", "*up*", "--method", "gptq", "-c",
                       "c.safetensors", "-o", "c.safetensors", "--force", status=2,
                       says="it is the input c.safetensors")
        quern("compare", "q.safetensors", "model.safetensors", "--min-sqnr", 10)

    def test_modes(self):
        for name, words in self.commands.items():
            for mode in (0o600, 0o640, 0o664):
                with open("out", "w", encoding="utf-8"):
                    os.chmod("out", mode)
                quern(*words, "-o", "out", "--force")
                self.assertEqual(os.stat("out").st_mode & 0o777, mode, name)
            os.remove("out")

    def test_left_by_others(self):
        """A part file that others may write to, or another user's."""
        with open("o.part", "w", encoding="utf-8"):
            os.chmod("o.part", 0o666)
        out = quern(*self.commands["quantize"], "-o", "o")
        self.assertIn("o.part: replaced", out.err)
        self.assertEqual(os.stat("o").st_mode & 0o022, 0)
        if os.geteuid() != 0:
            return
        with open("n.part", "w", encoding="utf-8"):
            os.chown("n.part", 12345, 12345)
        for more in ([], ["--resume"], ["--force"]):
            self.refused("n", 4, "belongs to another user (12345)",
                         *[word for word in more if word == "--force"])
            self.complains(*self.commands["pack"], "-o", "n", *more, status=4, says="another user")
        os.remove("n.part")


class Reports(Case):
    def test_demo(self):
        """The demo's report: its place is looked at first, and what lies there is not followed."""
        os.mkdir("folder")
        os.symlink("nowhere", "link.html")
        for path, says in (("folder", "it is a folder"), ("link.html", "leads nowhere"),
                           ("none/r.html", "no such file or folder")):
            begin = time.monotonic()
            self.complains("demo", "--time", "120", "--html", path, status=4, says=says)
            self.assertLess(time.monotonic() - begin, 60)
        with open("mine", "w", encoding="utf-8") as file:
            file.write("mine")
        with open("r.html", "w", encoding="utf-8"):
            os.chmod("r.html", 0o600)
        os.symlink("mine", "r.html.part")
        self.complains("demo", "--time", "5", "--html", "r.html", status=4, says="its .part")
        os.remove("r.html.part")
        quern("demo", "--time", "5", "--html", "r.html")
        with open("mine", encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")
        self.assertEqual(os.stat("r.html").st_mode & 0o777, 0o600)
        self.assertEqual(sorted(os.listdir(".")),
                         ["folder", "link.html", "mine", "r.html"])


# What each option of quantize and pack is given in the second of two runs. An option that is not
# here fails the test: either it changes the result, or it is named as one that does not.
CHANGED = {
    "quantize": {"bits": "8", "group": "32", "scheme": "zp", "format": "int8:g32",
                 "method": "search", "range": "half", "include": "*", "exclude": "0",
                 "conv-groups": "conv=2", "axes": "[0-9]*=oi", "all": None, "copy-unknown": None,
                 "prescale": "smooth", "alpha": "0.7", "act-order": None, "damping": "0.5",
                 "plain-scales": None, "device": "cpu", "isa": "portable"},
    "pack": {"include": "*", "exclude": "0", "layout": "q4n16", "x-block": "64", "no-sums": None,
             "shard": "1/2", "split": "row", "device": "cpu", "isa": "portable"},
}
# Options that change no byte, those that this test itself is about, and --to, whose part file has
# another name.
UNCHANGED = {"to", "out", "dry-run", "resume", "force", "quiet", "json", "threads", "color", "help",
             "calibration"}


class Resumed(Case):
    def interrupted(self, *words, by=signal.SIGINT):
        """Stopped after some tensors, by Ctrl-C or without a chance to say so."""
        process = quern_on_a_leash(*words)
        process.stderr.readline()
        process.stderr.readline()
        process.send_signal(by)
        err = process.communicate(timeout=280)[1]
        self.assertEqual(process.returncode, 130 if by == signal.SIGINT else -by, err)

    def read(self, path):
        with open(path, "rb") as file:
            return file.read()

    def many_and_conv(self):
        values = normal(256 * 512)
        tensors = {str(i): ("F16", [256, 512], values) for i in range(16)}
        tensors["conv"] = ("F16", [64, 64, 1, 1], values[:4096])
        safetensors("m.safetensors", tensors)
        safetensors("c.safetensors", {
            **{str(i): ("F32", [4, 512], normal(2048, i, 1)) for i in range(16)},
            "conv": ("F32", [4, 64], normal(256, 9, 1))})

    def test_every_option(self):
        """Each option of --help is part of the fingerprint, and named with its values."""
        self.many_and_conv()
        quern("quantize", "m.safetensors", "-o", "q.safetensors", "-q")
        for command, source in (("quantize", "m.safetensors"), ("pack", "q.safetensors")):
            words = [command, source, "-o", "r.safetensors"]
            self.interrupted(*words)
            before = self.read("r.safetensors.part")
            options = set(re.findall(r"^\s+(?:-\w, )?--([\w-]+)", quern("help", command), re.M))
            self.assertEqual(options - set(CHANGED[command]) - UNCHANGED, set())
            self.assertEqual(set(CHANGED[command]) - options, set())
            for name, value in CHANGED[command].items():
                more = [f"--{name}"] + ([] if value is None else [value])
                says = "is 'given'" if value is None else f"is '{value}'"
                if name in ("alpha", "prescale", "act-order", "damping", "plain-scales", "layout",
                            "split"):
                    # Only with other options, or for other weights: the first run has it.
                    self.changed_back(command, source, name, value)
                    continue
                with self.subTest(command=command, option=name):
                    line = self.complains(*words, "--resume", *more, status=2,
                                          says=[f"--{name} was not given and {says}",
                                                "of 17 tensors are done", "--force"])
                    self.assertRegex(line, r"r\.safetensors: its \.part is of another run")
            if os.environ.get("QUERN_ISA") is None:
                self.complains(*words, "--resume", status=2, env={"QUERN_ISA": "portable"},
                               says="QUERN_ISA was not given and is 'portable'")
            self.assertEqual(self.read("r.safetensors.part"), before)
            quern(*words, "--resume", "-q", "-t", "1")
            quern(*words[:3], "w.safetensors", "-q")
            self.assertEqual(self.read("r.safetensors"), self.read("w.safetensors"))
            os.remove("r.safetensors")
            os.remove("w.safetensors")

    def changed_back(self, command, source, name, value):
        """The option in the run that was interrupted, and no more in the second."""
        others = {"alpha": ["--prescale", "smooth", "-c", "c.safetensors"],
                  "prescale": ["-c", "c.safetensors"],
                  "act-order": ["--method", "gptq", "-c", "c.safetensors"],
                  "plain-scales": ["--method", "gptq", "-c", "c.safetensors"],
                  "damping": ["--method", "gptq", "-c", "c.safetensors"],
                  "split": ["--shard", "1/2", "-i", "?", "-i", "1?"]}.get(name, [])
        words = [command, source, "-o", "b.safetensors", *others]
        more = [f"--{name}"] + ([] if value is None else [value])
        self.interrupted(*words, *more)
        was = "given" if value is None else value
        self.complains(*words, "--resume", status=2,
                       says=f"--{name} was '{was}' and is not given")
        os.remove("b.safetensors.part")

    def test_changed_inputs(self):
        """Which file changed, and how; the calibration file, too."""
        self.many("m.safetensors")
        safetensors("c.safetensors", {str(i): ("F32", [4, 512], normal(2048, i, 1))
                                      for i in range(16)})
        words = ["quantize", "m.safetensors", "-o", "r.safetensors", "--method", "search", "-c",
                 "c.safetensors"]
        self.interrupted(*words)
        part = self.read("r.safetensors.part")
        for path in ("m.safetensors", "c.safetensors"):
            old, facts = self.read(path), os.stat(path)
            times = (facts.st_atime_ns, facts.st_mtime_ns)
            os.utime(path, ns=(times[0], times[1] + 1))
            self.complains(*words, "--resume", status=2, says=["the time of input", path])
            with open(path, "r+b") as file:
                file.seek(-3, os.SEEK_END)
                file.write(b"abc")
            os.utime(path, ns=times)
            self.complains(*words, "--resume", status=2, says=["the content of input", path])
            with open(path, "wb") as file:
                file.write(old)
            os.utime(path, ns=times)
        safetensors("n.safetensors", {str(i): ("F16", [256, 512], normal(256 * 512, 9))
                                      for i in range(16)})
        self.complains("quantize", "n.safetensors", *words[2:], "--resume", status=2,
                       says=["input 1 was 'm.safetensors' and is 'n.safetensors'"])
        self.assertEqual(self.read("r.safetensors.part"), part)
        out = quern(*words, "--resume", "--json", "-q")
        self.assertGreaterEqual(json.loads(out)["resumed"], 1)

    def test_pack_another_input(self):
        self.many("m.safetensors")
        quern("quantize", "m.safetensors", "-o", "a.safetensors", "-q")
        quern("quantize", "m.safetensors", "-o", "b.safetensors", "-q", "--range", "half")
        self.interrupted("pack", "a.safetensors", "-o", "p.safetensors")
        self.complains("pack", "b.safetensors", "-o", "p.safetensors", "--resume", status=2,
                       says="input 1 was 'a.safetensors' and is 'b.safetensors'")
        os.replace("b.safetensors", "a.safetensors")
        self.complains("pack", "a.safetensors", "-o", "p.safetensors", "--resume", status=2,
                       says="of input 1 (a.safetensors) was")
        out = quern("pack", "a.safetensors", "-o", "p.safetensors", "--resume", "--force")
        self.assertIn("thrown away, as --force says", out.err)
        self.assertRegex(out.err, r"[1-9]\d* of 16 tensors are done in it")
        quern("pack", "a.safetensors", "-o", "w.safetensors", "-q")
        self.assertEqual(self.read("p.safetensors"), self.read("w.safetensors"))

    def test_thrown_away(self):
        self.many("m.safetensors")
        words = ["quantize", "m.safetensors", "-o", "r.safetensors"]
        self.interrupted(*words, "--method", "search")
        out = quern(*words, "-q")
        self.assertRegex(out.err, r"^quern: r\.safetensors\.part: [1-9]\d* of 16 tensors that an "
                                  r"interrupted run had done are thrown away; --resume ")
        with open("s.safetensors.part", "wb") as file:  # as finished as can be
            file.write(self.read("r.safetensors"))
        os.chmod("s.safetensors.part", 0o644)
        out = quern(*words[:3], "s.safetensors", "--resume")
        self.assertIn("s.safetensors.part: replaced; nothing in it could be continued", out.err)
        self.assertIn("0 of 16 tensors are there already", out.err)

    def test_flipped_bits(self):
        """A bit turned anywhere in what was done: found, and made again."""
        self.many("m.safetensors")
        words = ["quantize", "m.safetensors", "-o", "r.safetensors"]
        self.interrupted(*words)
        part = bytearray(self.read("r.safetensors.part"))
        quern("quantize", "m.safetensors", "-o", "w.safetensors", "-q")
        whole = self.read("w.safetensors")
        source = random.Random(3)
        for _ in range(24):
            at = source.randrange(len(part))
            part[at] ^= 1 << at % 8
            with open("r.safetensors.part", "wb") as file:
                file.write(part)
            part[at] ^= 1 << at % 8
            os.chmod("r.safetensors.part", 0o644)
            done = subprocess.run([QUERN, *words, "--resume", "-q"], capture_output=True,
                                  timeout=280, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(self.read("r.safetensors"), whole)
            os.remove("r.safetensors")

    def test_killed(self):
        """Killed at any moment, and killed again: --resume ends with the same bytes."""
        self.many("m.safetensors")
        quern("quantize", "m.safetensors", "-o", "q.safetensors", "-q", "--method", "search")
        source = random.Random(7)
        for words in (["quantize", "m.safetensors", "--method", "search"],
                      ["pack", "q.safetensors"]):
            begin = time.monotonic()
            quern(*words, "-o", "w.safetensors", "-q")
            took, whole = time.monotonic() - begin, self.read("w.safetensors")
            for _ in range(4 if is_sanitized() else 25):
                more = []
                for _ in range(source.randrange(1, 4)):
                    process = subprocess.Popen([QUERN, *words, "-o", "r.safetensors", "-q", *more],
                                               stderr=subprocess.DEVNULL)
                    time.sleep(source.random() * took)
                    process.kill()
                    process.wait()
                    more = ["--resume"]
                    if os.path.exists("r.safetensors"):
                        break
                if not os.path.exists("r.safetensors"):
                    quern(*words, "-o", "r.safetensors", "-q", "--resume")
                self.assertEqual(self.read("r.safetensors"), whole)
                self.assertFalse(os.path.exists("r.safetensors.part"))
                os.remove("r.safetensors")
            self.interrupted(*words, "-o", "r.safetensors", by=signal.SIGKILL)
            out = quern(*words, "-o", "r.safetensors", "-q", "--json", "--resume")
            self.assertGreater(json.loads(out)["resumed"], 0)
            self.assertEqual(self.read("r.safetensors"), whole)
            os.remove("r.safetensors")
            os.remove("w.safetensors")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
