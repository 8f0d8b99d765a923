#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile files, systematically: every truncation and every flipped bit of small files of each
container, planted part files, inputs that shrink. Prints what was tried and what came of it;
docs/reliability.md has the figures of a whole run.

    campaign.py QUERN [--long]      without --long every 13th variant, for `make check`

What must hold: no process dies by a signal or hangs; every truncation is refused; in files with
checksums every flipped bit is found; whatever is planted or cut, a published output is
the right one to the byte.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

QUERN = os.path.abspath(sys.argv[1])
LONG = "--long" in sys.argv[2:]
STEP = 1 if LONG else 13
BATCH = 400
counts = {}


def count(what, number=1):
    counts[what] = counts.get(what, 0) + number


def run(*words, timeout=300):
    done = subprocess.run([QUERN, *words], capture_output=True, timeout=timeout, check=False)
    count("processes")
    if done.returncode < 0 or done.returncode not in (0, 1, 2, 3, 4):
        raise AssertionError(f"quern {' '.join(words[:6])}: status {done.returncode}\n"
                             f"{done.stderr[-800:].decode(errors='replace')}")
    return done


# ------------------------------------------------------------------------------------ small files

def safetensors(tensors):
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def floats(n, seed=1):
    values = []
    for _ in range(n):
        seed = (seed * 1103515245 + 12345) % (1 << 31)
        values.append((seed >> 8) % 2001 / 1000 - 1)
    return struct.pack(f"<{n}f", *values)


def npy():
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }"
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + floats(15)


def gguf():
    def text(s):
        return struct.pack("<Q", len(s)) + s
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 2)
    head += text(b"general.architecture") + struct.pack("<I", 8) + text(b"none")
    head += text(b"general.alignment") + struct.pack("<II", 4, 32)
    head += text(b"w") + struct.pack("<IQQIQ", 2, 32, 2, 2, 0)
    head += text(b"b") + struct.pack("<IQIQ", 1, 4, 0, 64)
    head += b"\0" * (-len(head) % 32)
    blocks = b"".join(b"\x00\x3c" + bytes(range(16 * i, 16 * i + 16)) for i in (1, 2))
    return head + blocks + b"\0" * (-len(blocks) % 32) + floats(4)


def make_files():
    """name -> (bytes, has checksums)"""
    files = {"safetensors": (safetensors({"a": ("F32", [3, 5], floats(15)),
                                          "b": ("I8", [7], b"abcdefg")}), False),
             "npy": (npy(), False), "gguf": (gguf(), False)}
    with open("m.safetensors", "wb") as file:
        file.write(safetensors({"w": ("F32", [18, 40], floats(720)),
                                "norm": ("F32", [5], floats(5, 2))}))
    for name, form in (("int4", "int4:g24:zp"), ("nf4", "nf4:g16")):
        run("quantize", "m.safetensors", "-f", form, "--all", "-o", "q.safetensors", "-q",
            "--force")
        run("pack", "q.safetensors", "-o", "p.safetensors", "-q", "--force")
        for kind in ("q", "p"):
            with open(kind + ".safetensors", "rb") as file:
                raw = file.read()
            files[f"{'quern' if kind == 'q' else 'packed'} {name}"] = (raw, True)
            if kind == "p":  # the head alone: no checksum, no metadata that contradicts it
                raw = raw.replace(b"quern.xxh64.", b"quern.hidden")
                raw = raw.replace(b"quern.header", b"quern.hidden")
                files[f"packed head {name}"] = (raw.replace(b"quern.packed", b"quern.hiddex"),
                                                False)
    return files


# --------------------------------------------------------------------------- truncations and flips

def verify(variants):
    """For each of many files: is it good by `quern verify`? Two files at least, so that one that
    cannot be read does not decide the output's form."""
    good = []
    for first in range(0, len(variants), BATCH):
        names = []
        for i, raw in enumerate(variants[first:first + BATCH]):
            names.append(f"v{i}")
            with open(names[-1], "wb") as file:
                file.write(raw)
        done = run("verify", *names, "--json", "-t", "1")
        verdict = {}
        for line in done.stdout.decode().splitlines():
            found = json.loads(line)
            if "file" in found:
                verdict[found["file"]] = found["good"]
        good += [verdict.get(name, False) for name in names]
        for name in names:
            os.remove(name)
    return good


def flip(raw, bit):
    changed = bytearray(raw)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def header_end(raw):
    return 8 + struct.unpack_from("<Q", raw)[0]


def truncations(kind, raw):
    variants = [raw[:size] for size in range(0, len(raw), STEP)]
    good = verify(variants)
    count("truncations", len(variants))
    if any(good):
        raise AssertionError(f"{kind}: cut to {good.index(True) * STEP} bytes it is called good")


def flips(kind, raw, has_sums):
    bits = range(0, 8 * len(raw), STEP)
    good = verify([flip(raw, bit) for bit in bits])
    missed = [bit for bit, is_good in zip(bits, good) if is_good]
    count("flipped bits", len(good))
    if has_sums:
        if missed:
            raise AssertionError(f"{kind}: a flipped bit at byte {missed[0] // 8} was not found")
        count("flipped bits of files with checksums", len(good))
        count("of these not found", len(missed))


def heads(kind, raw):
    """Used, not only looked at: what loads is multiplied with."""
    start = header_end(raw)
    with open("x.safetensors", "wb") as file:
        file.write(safetensors({"x": ("F32", [2, 40], floats(80))}))
    bits = range(8 * start, 8 * (start + 512), 7 if LONG else 199)
    for bit in bits:
        with open("v", "wb") as file:
            file.write(flip(raw.replace(b"quern.hiddex", b"quern.packed"), bit))
        run("run", "-w", "v", "-x", "x.safetensors", "-o", "y.npy", "--force", "-t", "1")
        run("inspect", "v")
    count("products with damaged heads", len(bits))


# ----------------------------------------------------------------------------------- planted parts

def contents(path):
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def leash(*words):
    """Started; it waits at each tensor until its line is read."""
    near, far = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    process = subprocess.Popen([QUERN, *words], stderr=far)
    os.close(far)
    return process, os.fdopen(near, encoding="utf-8")


def many(path, n=24):
    with open(path, "wb") as file:
        file.write(safetensors({f"l{i:02}.weight": ("F32", [64, 256], floats(64 * 256, i + 1))
                                for i in range(n)}))


QUANTIZE = ("quantize", "n.safetensors", "-f", "int4:g32")


def interrupted():
    """A part file of a run that was stopped."""
    process, lines = leash(*QUANTIZE, "-o", "o.safetensors")
    lines.readline()
    process.send_signal(signal.SIGINT)
    lines.read()
    process.wait(timeout=300)
    part = contents("o.safetensors.part")
    assert process.returncode == 130 and part is not None
    return part


def resume(wanted, what):
    done = run(*QUANTIZE, "-o", "o.safetensors", "-q", "--resume")
    found = contents("o.safetensors")
    if done.returncode == 0 and found != wanted:
        raise AssertionError(f"{what}: another file than without it was published")
    if done.returncode != 0 and found is not None:
        raise AssertionError(f"{what}: refused, and published")
    count("planted parts")
    count("of these refused", done.returncode != 0)
    for name in ("o.safetensors", "o.safetensors.part"):
        if os.path.lexists(name):
            os.remove(name)


def parts():
    many("n.safetensors")
    run(*QUANTIZE, "-o", "w.safetensors", "-q")
    wanted = contents("w.safetensors")
    part = interrupted()
    os.remove("o.safetensors.part")
    size = len(part)
    cases = [(f"bit {bit} flipped", flip(part, bit))
             for bit in range(5, 8 * size, 8 * size // (2000 if LONG else 40))]
    cases += [(f"journal bit {bit} flipped", flip(part, bit))
              for bit in range(8 * (size - 600), 8 * size, 3 if LONG else 97)]
    cases += [(f"cut to {n}", part[:n]) for n in range(0, size, size // (200 if LONG else 12))]
    cases += [("a finished file", wanted), ("a finished file of zeros", bytes(len(wanted)))]
    for what, raw in cases:
        with open("o.safetensors.part", "wb") as file:
            file.write(raw)
        os.chmod("o.safetensors.part", 0o600)
        resume(wanted, what)
    for mode in (0o666, 0o620, 0o602):
        with open("o.safetensors.part", "wb") as file:
            file.write(flip(part, 8 * (size // 2)))
        os.chmod("o.safetensors.part", mode)
        resume(wanted, f"mode {mode:o}")
    for target in ("nowhere", "n.safetensors", "/dev/null", "."):
        os.symlink(target, "o.safetensors.part")
        before = contents("n.safetensors")
        resume(wanted, f"a link to {target}")
        assert contents("n.safetensors") == before
    os.link("w.safetensors", "o.safetensors.part")
    resume(wanted, "a second name of a file")
    assert contents("w.safetensors") == wanted
    os.mkfifo("o.safetensors.part")
    resume(wanted, "a pipe")


def shrinking():
    many("n.safetensors")
    whole = os.path.getsize("n.safetensors")
    for left in range(0, whole, whole // (40 if LONG else 5)):
        for threads in ("1", "4"):
            many("n.safetensors")
            process, lines = leash(*QUANTIZE, "-o", "s.safetensors", "-t", threads)
            lines.readline()
            os.truncate("n.safetensors", left)
            text = lines.read()
            process.wait(timeout=300)
            count("shrinking inputs")
            if process.returncode != 3 or "n.safetensors" not in text:
                raise AssertionError(f"cut to {left} bytes, {threads} threads: status "
                                     f"{process.returncode}: {text[-300:]}")
            assert not [f for f in os.listdir(".") if f.startswith("s.safetensors")
                        and not f.endswith(".part")]
            if os.path.exists("s.safetensors.part"):
                os.remove("s.safetensors.part")


def main():
    folder = tempfile.mkdtemp(prefix="quern-hostile-")
    os.chdir(folder)
    try:
        for kind, (raw, has_sums) in make_files().items():
            truncations(kind, raw)
            flips(kind, raw, has_sums)
            if kind.startswith("packed head"):
                heads(kind, raw)
        parts()
        shrinking()
    finally:
        os.chdir("/")
        shutil.rmtree(folder)
    for what, number in counts.items():
        print(f"{number:9} {what}")


main()
