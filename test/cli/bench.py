#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""quern bench, explain, tune and demo from outside.

    bench.py QUERN [NAME...]
"""
import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

from command import QUERN, Case, quern


class Bench(Case):
    KEYS = ["op", "n", "k", "m", "weights", "strategy", "x", "device", "threads", "isa", "kernel",
            "us_median", "us_p10", "us_p90", "bytes", "ops", "bound_us", "error", "commit"]

    def lines(self, *words):
        found = [json.loads(line) for line in quern(
            "bench", "--json", "--warm", "--min-time", "0.01", *words,
            env={"QUERN_THREADS": "1"}).splitlines()]
        for line in found:
            for key in self.KEYS:
                self.assertIn(key, line)
            self.assertTrue(line["verified"], line)
            self.assertLessEqual(line["us_p10"], line["us_median"])
            self.assertLessEqual(line["us_median"], line["us_p90"])
            self.assertGreater(line["bound_us"], 0)
        return found

    def test_matmul(self):
        found = self.lines("--n", 80, "--k", 200, "--m", "1,3,17", "--weights",
                           "int4:g128,int8:pc,int4:g32:zp,iq4_nl", "--strategy",
                           "float,int8-row,int8-block")
        self.assertEqual(len(found), 36)
        for line in found:
            self.assertLess(line["error"], 1e-5 if line["strategy"] == "float" else 0.02)
        found = self.lines("--n", 64, "--k", 256, "--m", 4, "--weights",
                           "q4_k,q6_k,q4_0,mxfp4,fp8:pc")
        self.assertEqual([f["weights"] for f in found][0], "q4_k")
        found = self.lines("--n", 64, "--k", 128, "--m", 4, "--strategy", "int8-static", "--x",
                           "u8", "--y", "i8", "--weights", "int8:pc")
        self.assertEqual(found[0]["x"], "u8")
        for kind in ("f16", "bf16"):
            self.lines("--n", 64, "--k", 128, "--m", "1,5", "--x", kind, "--y", kind)

    def test_same_weights(self):
        """Cases that share weights have the same answers as on their own."""
        words = ["bench", "--n", 48, "--k", 96, "--min-time", 0, "--warm", "--json",
                 "--strategy", "float,int8-row", "--weights", "int4:g32,int8:pc"]
        together = [json.loads(line) for line in quern(*words, "--m", "9,1,4").splitlines()]
        alone = [json.loads(line) for m in (9, 1, 4)
                 for line in quern(*words, "--m", m).splitlines()]
        key = ("m", "weights", "strategy", "kernel", "error", "verified", "bytes", "ops")
        facts = [sorted(tuple(str(r[k]) for k in key) for r in rows) for rows in (together, alone)]
        self.assertEqual(len(facts[0]), 12)
        self.assertEqual(facts[0], facts[1])
        self.complains(*words, "--pdl", status=2, says="--pdl")

    def test_isa(self):
        for isa in ("portable", "avx2", "all"):
            found = self.lines("--n", 64, "--k", 128, "--m", "1,8", "--strategy",
                               "float,int8-block", "--isa", isa)
            self.assertEqual({f["threads"] for f in found}, {1})
            if isa == "portable":
                self.assertEqual({f["isa"] for f in found}, {"portable"})

    def test_more_threads_than_cpus(self):
        """They leave the limits as they are; what each reads alone adds up to 8 times these."""
        words = ["--n", 64, "--k", 128, "--m", 1]
        info = json.loads(quern("info", "--quick", "--json", "--threads", 0))
        here = info["devices"][0]["threads"]
        few, many = (self.lines(*words, "--threads", n)[0] for n in (here, 8 * here))
        self.assertEqual(many["threads"], 8 * here)
        for limit in ("limit_gb_per_s", "limit_gop_per_s"):
            self.assertLess(many[limit], 3 * few[limit])

    def test_grouped_and_conv(self):
        found = self.lines("--op", "grouped", "--n", 48, "--k", 64, "--m", "1,9", "--experts", 5,
                           "--top-k", 2, "--strategy", "float,int8-block")
        self.assertEqual(found[0]["experts"], 5)
        for image in ("nchw", "nhwc"):
            found = self.lines("--op", "conv2d", "--n", 24, "--ci", 16, "--size", "9x11",
                               "--kernel-size", "3x5", "--pad", "1,2,1,2", "--stride", "2x1",
                               "--weights", "int8:pc,int4:c8", "--strategy",
                               "float,int8-row,int8-block", "--image", image)
            self.assertEqual((found[0]["kh"], found[0]["kw"], found[0]["oh"], found[0]["ow"]),
                             (3, 5, 5, 11))
        found = self.lines("--op", "conv2d", "--n", 32, "--ci", 32, "--groups", 32, "--size", "8",
                           "--kernel-size", 3, "--pad", 1, "--weights", "int8:pc", "--strategy",
                           "float,int8-static")
        self.assertEqual(found[0]["groups"], 32)

    def test_layers(self):
        found = self.lines("--layers", "resnet50/layer4.conv2", "--weights", "int8:pc",
                           "--strategy", "int8-row", "--threads", 2)
        self.assertEqual(found[0]["threads"], 2)
        self.assertEqual((found[0]["ci"], found[0]["n"], found[0]["oh"]), (512, 512, 7))
        listed = quern("bench", "--layers", "list")
        self.assertIn("llama3-8b/ffn.down", listed)

    def test_rotation(self):
        found = json.loads(quern("bench", "--json", "--min-time", "0.01", "--n", 512, "--k", 1024))
        self.assertGreater(found["copies"], 1)
        self.assertGreaterEqual(found["copies"] * found["packed_bytes"], 32 << 20)

    def test_plain(self):
        found = self.lines("--n", 64, "--k", 128, "--m", 4, "--plain")
        self.assertGreater(found[0]["us_plain"], 0)

    def test_table(self):
        text = quern("bench", "--n", 64, "--k", 64, "--warm", "--min-time", "0.01")
        self.assertIn("of limit", text)
        self.assertEqual(len(text.splitlines()), 2)

    def test_conv_transpose(self):
        """Every strategy, order, stride, group and padding is checked against sums in double."""
        for more in (["--stride", 2, "--pad", 1, "--out-pad", 1],
                     ["--stride", "2x3", "--pad", "1,0,1,2", "--image", "nhwc"],
                     ["--groups", 4, "--dilation", 2], ["--stride", 2, "--groups", 16]):
            lines = quern("bench", "--json", "--warm", "--min-time", "0.01", "--op",
                          "conv_transpose2d", "--n", 16, "--ci", 16, "--size", "5x6",
                          "--kernel-size", "3x3", "--weights", "int8:pc", "-s",
                          "float,int8-row,int8-block,int8-static", *more).strip().split("\n")
            self.assertEqual(len(lines), 4)
            for line in map(json.loads, lines):
                self.assertTrue(line["verified"])
                self.assertEqual(line["op"], "conv_transpose2d")
                self.assertEqual(line["ops"], 2 * 5 * 6 * 16 * 9 * 16 // line["groups"])
        shape = ["--op", "conv_transpose2d", "--n", 8, "--ci", 8, "--size", "4x4",
                 "--kernel-size", "4x4", "--stride", 2, "--pad", 1]
        line = json.loads(quern("explain", "--json", *shape))
        self.assertEqual(line["op"], "conv_transpose2d")
        self.complains("bench", "--n", 8, "--k", 8, "--out-pad", 1, status=2, says="--out-pad")

    def test_partial_failure(self):
        """One impossible case does not hide the others, and is not forgotten."""
        out = quern("bench", "--json", "--warm", "--min-time", "0.01", "--n", 64, "--k", 64,
                    "--weights", "int4:g32,int8:pc", "--kernel", "nope", status=4)
        self.assertEqual(json.loads(out)["code"], 4)
        self.assertEqual(out.err.count("quern: "), 2)

    def test_explain(self):
        text = quern("explain", "--n", 64, "--k", 128, "--m", 1)
        self.assertIn("qni_matmul_", text)
        line = json.loads(quern("explain", "--n", 64, "--k", 128, "--m", 1, "--json"))
        self.assertIn(line["kernel"], line["text"])
        self.assertEqual(line["ops"], 2 * 64 * 128)

    def test_explain_failed(self):
        """Where nothing serves, the explanation begins with the reason that governs."""
        problem = ("explain", "--n", 64, "--k", 128, "--m", 1, "--strategy", "int8-row",
                   "--weights", "nf4:g32")
        text = quern(*problem, status=4)
        why = "int8 strategies multiply integers, which the values of the codebook are not"
        self.assertTrue(text.startswith("no kernel serves this: " + why), text)
        self.assertIn("refused:\n  qni_matmul_", text)
        self.assertEqual(text.err.count("quern: "), 1)
        self.assertIn(why, text.err)
        lines = map(json.loads, quern(*problem, "--json", status=4).splitlines())
        line = [one for one in lines if "text" in one][0]
        self.assertFalse(line["served"])
        self.assertNotIn("kernel", line)
        self.assertTrue(text.startswith(line["text"]))
        out = quern("explain", "--n", 64, "--k", 64, "--kernel", "nope", status=4)
        self.assertIn("is called qni_nope", out.splitlines()[0])
        self.assertIn("does not exist", out.err)

    PEER = """#!/usr/bin/env python3
import json, struct, sys
print(json.dumps(%(hello)s), flush=True)
for line in sys.stdin:
    order, reply = json.loads(line), {"ok": True}
    if order["do"] == "make":
        m, n, k = order["m"], order["n"], order["k"]
        x, w = [struct.unpack("%%df" %% (len(raw) // 4), raw) for raw in
                (open(order[f], "rb").read() for f in ("x_file", "w_file"))]
        reply = {"ways": ["dot", "wrong"]}
    if order["do"] == "run":
        %(run)s
        reply = {"us": [5.0, 7.0, 6.0]}
    if order["do"] == "result":
        y = [sum(x[i * k + p] * w[j * k + p] for p in range(k)) + 9 * order["way"]
             for i in range(m) for j in range(n)]
        open(order["y_file"], "wb").write(struct.pack("%%df" %% len(y), *y))
    print(json.dumps(reply), flush=True)
"""

    def make_peer(self, name, hello, run="pass"):
        os.makedirs("peers", exist_ok=True)
        path = os.path.join("peers", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.PEER % {"hello": repr(hello), "run": run})
        os.chmod(path, 0o755)

    def test_peers(self):
        words = ["bench", "--json", "--warm", "--min-time", "0.01", "--n", 20, "--k", 32, "--m", 3,
                 "--peers", "--peer-folder", "peers"]
        self.complains(*words, status=3, says="no peer")
        self.make_peer("good", {"peer": "good", "version": "1.2"})
        self.make_peer("absent", {"skip": "its library is not here"})
        self.make_peer("dies", {"peer": "dies", "version": "0"}, run="sys.exit(1)")
        out = quern(*words)
        line = json.loads(out)
        found = {(p["peer"], p["way"]): p for p in line["peers"]}
        good = found["good", "dot"]
        self.assertTrue(good["verified"])
        self.assertLess(good["error"], 1e-5)
        self.assertEqual((good["us_median"], good["runs"], good["version"]), (6, 15, "1.2"))
        self.assertAlmostEqual(good["ratio"], line["us_median"] / 6, delta=0.01 * good["ratio"])
        self.assertFalse(found["good", "wrong"]["verified"])
        self.assertFalse(found["dies", "dot"]["verified"])
        self.assertIn("its library is not here", out.err)
        self.assertIn("left out", out.err)
        self.assertNotIn("peer-folder", line["command"])
        self.assertIn("--n 20", line["command"])
        self.assertTrue(line["machine"])
        text = quern(*[word for word in words if word != "--json"])
        self.assertIn("ours/theirs", text)
        self.assertIn("WRONG", text)
        alone = [word for word in words if word != "--peers"]
        line = json.loads(quern(*alone, "--peer", "good"))
        self.assertEqual({p["peer"] for p in line["peers"]}, {"good"})
        self.assertIn("--peer good", line["command"])
        for names in "goo", "good,gone", "good,", ",good", "":
            self.complains(*alone, "--peer", names, status=3, says="no such program")

    def test_interrupted(self):
        process = subprocess.Popen([QUERN, "bench", "--n", "64", "--k", "64", "--warm",
                                    "--min-time", "600"], stdout=subprocess.DEVNULL)
        self.addCleanup(process.kill)
        caught, end = 0, time.monotonic() + 280
        while not caught >> signal.SIGINT - 1 & 1 and time.monotonic() < end:
            time.sleep(0.05)
            with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
                caught = int(re.search(r"SigCgt:\s*(\w+)", file.read())[1], 16)
        time.sleep(1)  # mostly it measures by then; where it is makes no difference to the end
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=280), 130)


class Tuning(Case):
    """The file of constants is read and checked wherever it is asked for, also without a GPU."""
    LINE = {"family": "decode", "rows": 8, "int8": False, "bits": 4, "t0_us": 4.2,
            "gb_per_s": 2950, "block_ns": 16}
    PLAN = ("explain", "--n", 32, "--k", 32, "--device", "cpu")

    def write(self, change=None, name="t.json", **gpu):
        entry = {"gpu": "a GPU", "version": "0", "lines": [dict(self.LINE), dict(self.LINE)]}
        entry.update(gpu)
        entry["lines"][1:2] = [{**self.LINE, **(change or {})}] if entry["lines"] else []
        for key, value in list((change or {}).items()):
            if value is None:
                del entry["lines"][1][key]
        with open(name, "w", encoding="utf-8") as file:
            json.dump({"format": "quern tuning 1", "gpus": [entry]}, file)

    def test_good(self):
        self.write()
        text = quern(*self.PLAN)
        for tuning in ("t.json", "none"):
            self.assertEqual(quern(*self.PLAN, "--tuning", tuning), text)
        os.makedirs("config/quern")
        with open("config/quern/tuning.json", "w", encoding="utf-8") as file:
            file.write("{")
        # A file that nobody asked for is no matter of the CPU.
        quern(*self.PLAN, env={"XDG_CONFIG_HOME": os.path.abspath("config")})

    def test_bad_fields(self):
        for field, values in (("family", [None, 3, "", "x" * 99]), ("int8", [None, 1]),
                              ("rows", [None, "8", 0, 1.5, 1e9]), ("bits", [None, -4, 99]),
                              ("t0_us", [None, "x", -1, 1e300]), ("gb_per_s", [None, 0, -5]),
                              ("block_ns", [None, [], -1e-9])):
            for value in values:
                self.write({field: value})
                self.complains(*self.PLAN, "--tuning", "t.json", status=3,
                               says=["t.json", f"gpus[0].lines[1].{field}:"])
        self.write(gpu=7)
        self.complains(*self.PLAN, "--tuning", "t.json", status=3, says="gpus[0].gpu:")
        self.write(lines=[])
        quern(*self.PLAN, "--tuning", "t.json")

    def test_bad_files(self):
        for text in ("", "{", "[]", "{}", '{"format": "quern tuning 2", "gpus": []}',
                     '{"format": "quern tuning 1"}', '{"format": "quern tuning 1", "gpus": [3]}',
                     '{"format": "quern tuning 1", "gpus": [{"gpu": "x", "lines": 3}]}',
                     '{"format": "quern tuning 1", "gpus": []} x', "[" * 100000,
                     '{"format": "quern tuning 1", "gpus": []}\0', " " * (2 << 20)):
            with open("t.json", "w", encoding="utf-8") as file:
                file.write(text)
            for command in (self.PLAN, ("bench", *self.PLAN[1:])):
                self.complains(*command, "--tuning", "t.json", status=3, says="t.json: ")
        self.complains(*self.PLAN, "--tuning", "absent.json", status=3, says="absent.json: ")
        self.complains(*self.PLAN, "--tuning", ".", status=3, says="not a plain file")
        os.mkfifo("pipe")
        self.complains(*self.PLAN, "--tuning", "pipe", status=3, says="not a plain file")

    def test_tune(self):
        self.complains("tune", "--device", "gpu", "-o", "t.json", status=2, says="gpu")
        self.complains("tune", "--weights", "int4:x", "--dry-run", status=2, says="--weights")
        if "cuda:0:" not in quern("info", "--quick"):
            self.complains("tune", "-o", "new/t.json", status=4)
        self.assertEqual(os.listdir("."), [])


    def test_processor(self):
        """tune --device cpu writes what --tuning reads, beside the entries that are there."""
        self.write()
        lines = quern("tune", "--device", "cpu", "--quick", "--json", "-o", "t.json").splitlines()
        found = [json.loads(line) for line in lines]
        self.assertEqual(found[0]["kernel"], "memory")
        for line in found[:-1]:
            self.assertGreater(line["cases"], 0)
            self.assertLessEqual(line["least"], line["most"])
        self.assertGreater(found[-1]["cases"], 0)
        with open("t.json", encoding="utf-8") as file:
            root = json.load(file)
        self.assertEqual(root["gpus"][0]["gpu"], "a GPU")
        self.assertEqual([line["kernel"] for line in root["cpus"][0]["kernels"]],
                         [line["kernel"] for line in found[:-1]])
        plan = ("explain", "--n", 64, "--k", 128, "--m", 2, "--isa", "portable", "--device", "cpu")
        self.assertNotIn("times the library's", quern(*plan))
        quern("tune", "--device", "cpu", "--quick", "--isa", "portable", "-o", "t.json")
        self.assertIn("times the library's", quern(*plan, "--tuning", "t.json"))
        with open("t.json", encoding="utf-8") as file:
            root = json.load(file)
        self.assertEqual(len(root["cpus"]), 1)

        def with_cpu(change, entry=None):
            """The file with one line changed, or with a changed entry."""
            one = dict(root["cpus"][0])
            one["kernels"] = [one["kernels"][0], {**one["kernels"][1], **change}]
            one.update(entry or {})
            with open("bad.json", "w", encoding="utf-8") as file:
                json.dump({**root, "cpus": [one]}, file)

        for change, says in (({"times": 0}, "cpus[0].kernels[1].times:"),
                             ({"times": "x"}, "cpus[0].kernels[1].times:"),
                             ({"times": 1e9}, "cpus[0].kernels[1].times:"),
                             ({"kernel": 3}, "cpus[0].kernels[1].kernel:"),
                             ({"kernel": "x" * 64}, "cpus[0].kernels[1].kernel:"),
                             ({"kernel": "qni_gone"}, "no line 'qni_gone'")):
            with_cpu(change)
            self.complains(*plan, "--tuning", "bad.json", status=3, says=["bad.json", says])
        for entry, says in (({"cpu": 3}, "cpus[0].cpu:"), ({"kernels": 3}, "cpus[0].kernels:"),
                            ({"kernels": [3]}, "the line is no object"),
                            ({"kernels": [{}] * 129}, "too many"),
                            ({"cpu": "another"}, "it has no constants for")):
            with_cpu({}, entry)
            self.complains(*plan, "--tuning", "bad.json", status=3, says=["bad.json", says])
        for cpus in (3, {}, [3], [None]):
            with open("bad.json", "w", encoding="utf-8") as file:
                json.dump({**root, "cpus": cpus}, file)
            self.complains(*plan, "--tuning", "bad.json", status=3, says="bad.json: cpus")


class Demo(Case):
    def test_demo(self):
        out = json.loads(quern("demo", "--time", "5", "--json"))
        self.assertGreater(len(out["rows"]), 25)
        self.assertRegex(out["machine"], r"\d+ CPUs|multiprocessors")
        self.assertRegex(out["date"], r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
        self.assertGreaterEqual(out["load_average"], 0)
        for row in out["rows"]:
            self.assertTrue(row["verified"], row)
            self.assertLess(row["error"], 0.25)
            self.assertGreater(row["bound_us"], 0)
            self.assertGreater(row["plain_f32_us"], 0)
        with open("quern-demo.html", encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(page.count("<svg"), 2)  # the wide plot, and one for 400 pixels
        for words in (out["machine"].split(",")[0].split("(")[0], out["date"], "load average",
                      "plain f32", "Next steps", "quern quantize", "max-width:620px"):
            self.assertIn(words, page)
        for row in out["rows"]:
            if "outlier" in row:
                self.assertIn(f"{row['layer']} m {row['m']} {row['weights']} {row['strategy']}: "
                              f"{row['outlier']}", page)
        self.assertIn("prefers-color-scheme:dark", page)
        for outside in ("http", "src=", "@import", "url(", "<script"):
            self.assertNotIn(outside, page)
        self.assertEqual(os.listdir("."), ["quern-demo.html"])
        self.complains("demo", "--time", "x", status=2)

    def test_model(self):
        quern("demo", "--make-model", "m.safetensors", "--gb", "0.01")
        self.complains("demo", "--make-model", "m.safetensors", "--gb", "0.01", status=2)
        self.complains("demo", "--make-model", "no/m.safetensors", "--gb", "0.01", status=4)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]] + sys.argv[2:], verbosity=1)
