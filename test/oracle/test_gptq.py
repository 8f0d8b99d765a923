#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GPTQ folders, packed by packers.py, against qn_checkpoint, bit for bit; and every trap of the
format. Environment: QUERN_LIBRARY. Exit status 77: a package is missing."""
import os
import sys
import tempfile

try:
    import numpy as np
    from packers import dequantize, gptq, save
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install numpy safetensors)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, refused, same_bits

draw = np.random.default_rng(3)


def config(**keys):
    return {"quantization_config": {"quant_method": "gptq", **keys}}


def make(k, n, group, bits, zeros=None, dtype="f2"):
    groups = -(-k // group)
    u = draw.integers(0, 1 << bits, (k, n), dtype="u1")
    if zeros is None:
        zeros = draw.integers(1, 1 << bits, (groups, n))
    else:
        zeros = np.full((groups, n), zeros)
    return u, zeros, (draw.uniform(0.01, 1, (groups, n))).astype(dtype)


def named(tensors):
    return {f"m.{k}": v for k, v in tensors.items()}


def check(folder, tensors, settings, want, what, **options):
    save(folder, named(tensors), settings)
    with Checkpoint(folder, **options) as c:
        if c.names() != ["m.weight"]:
            sys.exit(f"{what}: modules {c.names()}")
        same_bits(c.values("m.weight")[0], want, what)
        rows = want.shape[0]
        for first, n in ((1, rows - 2), (rows - 3, 3), (0, 0)):
            same_bits(c.values("m.weight", first, n)[0], want[first:first + n], f"{what}, rows")
        return c.provenance("m.weight"), c.format("m.weight")


def check_bits(folder):
    for bits in (2, 3, 4, 8):
        for word in (8, 16, 32, 64):
            for k, n, group in ((64, 64, 32), (96, 192, 96), (192, 64, 64), (256, 64, 128)):
                u, z, s = make(k, n, group, bits)
                want = dequantize(u, z, s, np.arange(k) // group)
                for v1 in (True, False):
                    settings = config(bits=bits, group_size=group, sym=False,
                                      checkpoint_format="gptq" if v1 else "gptq_v2",
                                      meta={"quantizer": ["gptqmodel:1.4.0"]})
                    g_idx = np.arange(k) // group if k * bits % word else None
                    tensors = gptq(u, z, s, bits, word, g_idx, v1=v1)
                    if v1 and (z == 1 << bits).any():
                        sys.exit("a test that tests something else")
                    check(folder, tensors, settings, want, f"{bits} bits, {word}, {k} x {n}, {v1}")
    # The words of the documentation.
    u, z = np.arange(8, dtype="u1")[:, None].repeat(8, 1), np.full((1, 8), 8)
    s = np.full((1, 8), .5)
    tensors = gptq(u, z, s.astype("f2"), 4)
    if tensors["qweight"][0, 0] != 0x76543210 or tensors["qzeros"][0, 0] != 0x77777777:
        sys.exit("packers.gptq is wrong")
    want = np.arange(-8, 0).astype("f4")[None].repeat(8, 0) / 2
    check(folder, tensors, config(bits=4, group_size=-1, sym=True), want, "documented")
    three = gptq(np.arange(32, dtype="u1")[:, None] % 8, np.full((1, 32), 4),
                 np.ones((1, 32), "f2"), 3)["qweight"][:, 0].view("u4")
    if [f"{x:08X}" for x in three] != ["88FAC688", "C688FAC6", "FAC688FA"]:
        sys.exit("packers.stream is wrong")


def check_labels(folder):
    """Symmetric zeros tell v1 and v2 whatever the label says; others need a label one can trust."""
    for bits in (2, 3, 4, 8):
        half = 1 << (bits - 1)
        u, z, s = make(64, 64, 32, bits, half)
        want = dequantize(u, z, s, np.arange(64) // 32)
        for v1 in (True, False):
            for label in ("gptq", "gptq_v2", None):
                settings = config(bits=bits, group_size=32, sym=True)
                if label:
                    settings["quantization_config"]["checkpoint_format"] = label
                text, form = check(folder, gptq(u, z, s, bits, v1=v1), settings, want,
                                   f"label {label}, v1 {v1}")
                says = f"all zeros are {half - v1}, so {'v1' if v1 else 'v2'}"
                if says not in text or ":zp" in form:
                    sys.exit(f"provenance: {text}\n{form}")
    u, z, s = make(64, 64, 32, 4)
    want = dequantize(u, z, s, np.arange(64) // 32)
    tensors = gptq(u, z, s, 4)
    for quantizer, is_good in ((["gptqmodel:4.2.5"], True), (["auto_gptq:0.7"], True),
                               (["gptqmodel:5.0"], False), (["gptqmodel:10.0"], False),
                               (["x:1", "gptqmodel:2.0"], True), ([], False), (None, False)):
        settings = config(bits=4, group_size=32, sym=False, checkpoint_format="gptq")
        if quantizer is not None:
            settings["quantization_config"]["meta"] = {"quantizer": quantizer}
        if is_good:
            check(folder, tensors, settings, want, str(quantizer))
            continue
        save(folder, named(tensors), settings)
        with Checkpoint(folder) as c:
            refused("choose with gptq_zeros", c.values, "m.weight")
        for zeros, v1 in ((1, True), (3, False)):
            text, _ = check(folder, gptq(u, z, s, 4, v1=v1), settings, want, "chosen",
                            gptq_zeros=zeros)
            if "the caller's choice" not in text:
                sys.exit(text)
    save(folder, named(tensors)) # no configuration at all
    with Checkpoint(folder) as c:
        refused("choose with gptq_zeros", c.values, "m.weight")


def check_zero_of_v1(folder):
    """A stored 15 of v1: refused, 16, or 0."""
    u, z, s = make(64, 64, 32, 4)
    z[1, 5] = 16
    settings = config(bits=4, group_size=32, sym=False, meta={"quantizer": ["gptqmodel:1.0"]})
    save(folder, named(gptq(u, z, s, 4)), settings)
    with Checkpoint(folder) as c:
        refused("output 5, group 1 stores the zero 2^4 - 1", c.values, "m.weight")
        c.values("m.weight", 6, 10) # rows without it
    g = np.arange(64) // 32
    check(folder, gptq(u, z, s, 4), settings, dequantize(u, z, s, g), "16", gptq_zeros=1)
    check(folder, gptq(u, z, s, 4), settings, dequantize(u, z % 16, s, g), "0", gptq_zeros=2)
    # Zeros that look symmetric where they are looked at first, and are not.
    u, z, s = make(64, 8192, 32, 4, 8)
    z[1, 8000] = 3
    save(folder, named(gptq(u, z, s, 4)), config(bits=4, group_size=32, sym=True))
    with Checkpoint(folder) as c:
        refused("output 8000, group 1 is not 7", c.values, "m.weight")


def check_order(folder):
    for k, group, bits in ((64, 16, 4), (96, 32, 3), (100, 32, 8), (64, 16, 2)):
        u, z, s = make(k, 64, group, bits)
        g_idx = draw.permutation(np.arange(k) // group)
        settings = config(bits=bits, group_size=group, desc_act=True, sym=False,
                          checkpoint_format="gptq_v2")
        for word in (8, 16, 32):
            tensors = gptq(u, z, s, bits, word, g_idx, v1=False)
            text, _ = check(folder, tensors, settings, dequantize(u, z, s, g_idx),
                            f"act-order {bits} {word}")
            if "act-order" not in text:
                sys.exit(text)
        trivial = np.arange(k) // group
        check(folder, gptq(u, z, s, bits, 32, trivial, v1=False), settings,
              dequantize(u, z, s, trivial), "trivial g_idx")
        zero = gptq(u, z, s, bits, 32, np.zeros(k), v1=False)
        save(folder, named(zero), settings)
        with Checkpoint(folder) as c:
            refused("g_idx is all 0", c.values, "m.weight")
        settings["quantization_config"]["desc_act"] = False
        check(folder, zero, settings, dequantize(u, z, s, trivial), "g_idx of zeros")
        for bad, words in ((np.where(np.arange(k) == 3, -1, g_idx), "g_idx[3] is -1"),
                           (np.where(np.arange(k) == 3, 99, g_idx), "g_idx[3] is 99"),
                           (np.where(np.arange(k) == 3, (g_idx[3] + 1) % s.shape[0], g_idx),
                            "columns instead of")):
            save(folder, named(gptq(u, z, s, bits, 32, bad, v1=False)), settings)
            with Checkpoint(folder) as c:
                refused(words, c.values, "m.weight")


def check_planes(folder):
    """gptq_p: 3 bits by its label, 5 to 7 bits with any; act-order; rows and cuts along k."""
    for bits in (3, 5, 6, 7):
        for k, n, group in ((64, 64, 32), (96, 32, 96), (128, 64, 16), (32, 32, 32)):
            u, z, s = make(k, n, group, bits)
            want = dequantize(u, z, s, np.arange(k) // group)
            for label in ("gptq_p", "gptq", "gptq_v2", None) if bits > 3 else ("gptq_p",):
                settings = config(bits=bits, group_size=group, sym=False)
                if label:
                    settings["quantization_config"]["checkpoint_format"] = label
                text, _ = check(folder, gptq(u, z, s, bits, v1=False, planar=True), settings, want,
                                f"planes of {bits} bits, {label}")
                if "planes" not in text or "v2" not in text:
                    sys.exit(text)
            with Checkpoint(folder) as c:
                for first, length in ((16, 16), (0, 16), (16, k - 16)):
                    if first % group == 0 and length % group == 0:
                        same_bits(c.part("m.weight", 0, n, first, length),
                                  want[:, first:first + length], f"{bits} bits, cut at {first}")
            g_idx = draw.permutation(np.arange(k) // group)
            check(folder, gptq(u, z, s, bits, g_idx=g_idx, v1=False, planar=True),
                  config(bits=bits, group_size=group, sym=False, checkpoint_format="gptq_p"),
                  dequantize(u, z, s, g_idx), f"act-order, planes of {bits} bits")
        half = 1 << (bits - 1)
        u, z, s = make(64, 64, 32, bits, half)
        for v1 in (True, False): # symmetric zeros tell it themselves
            check(folder, gptq(u, z, s, bits, v1=v1, planar=True),
                  config(bits=bits, group_size=32, sym=True, checkpoint_format="gptq_p"),
                  dequantize(u, z, s, np.arange(64) // 32), f"symmetric, {bits} bits")


def check_short_group(folder):
    """k = 80 in groups of 32: the last has 16."""
    u, z, s = make(80, 64, 32, 4)
    want = dequantize(u, z, s, np.arange(80) // 32)
    settings = config(bits=4, group_size=32, sym=False, checkpoint_format="gptq_v2")
    check(folder, gptq(u, z, s, 4, v1=False), settings, want, "short group")
    save(folder, named(gptq(u, z, s, 4, v1=False)), {"quantization_config": {
        "quant_method": "gptq", "sym": False, "checkpoint_format": "gptq_v2"}})
    with Checkpoint(folder) as c:
        refused("3 groups do not divide k = 80", c.values, "m.weight")


def check_refusals(folder):
    u, z, s = make(64, 64, 32, 4)
    good = gptq(u, z, s, 4, v1=False)
    v2 = {"checkpoint_format": "gptq_v2"}
    cases = [
        (good, config(bits=8, group_size=32, **v2), "says 8 bits"),
        (good, config(bits=4, group_size=64, **v2), "group_size 64"),
        (good, config(bits=4, group_size=32, checkpoint_format="marlin"), "neither gptq nor"),
        (good, {"quantization_config": {"quant_method": "awq"}}, "AWQ's layouts"),
        ({**good, "qzeros": good["qzeros"][:1]}, config(), "qzeros 1 rows"),
        ({**good, "qzeros": good["qzeros"][:, :1]}, config(), "no 2 to 8 bits"),
        ({k: v for k, v in good.items() if k != "qzeros"}, config(), ".qzeros is missing"),
        ({k: v for k, v in good.items() if k != "scales"}, config(), ".scales is missing"),
        ({**good, "qweight": good["qweight"].reshape(4, 128)}, config(), "Marlin"),
        ({**good, "g_idx": np.zeros(99, "i4")}, config(**v2), "do not make 99 codes"),
        ({**good, "scales": np.full((2, 64), np.inf, "f2")}, config(**v2), "not finite"),
    ]
    planar = {"group_size": 32, "checkpoint_format": "gptq_p"}
    for bits, word, k, n in ((3, 64, 64, 64), (5, 16, 64, 64), (6, 32, 48, 64), (6, 32, 64, 48)):
        cases.append((gptq(*make(k, n, 16, bits), bits, word, v1=False),
                      config(bits=bits, **planar), "planes have words of 32 bits for 32 codes"))
    for tensors, settings, words in cases:
        save(folder, named(tensors), settings)
        with Checkpoint(folder) as c:
            refused(words, c.values, "m.weight")
    # Bits that differ from module to module are read from each module's shapes.
    settings = config(bits=8, group_size=64, dynamic={"m": {"bits": 4, "group_size": 32}}, **v2)
    check(folder, good, settings, dequantize(u, z, s, np.arange(64) // 32), "dynamic")


def main():
    with tempfile.TemporaryDirectory() as root:
        for test in (check_bits, check_labels, check_zero_of_v1, check_order, check_planes,
                     check_short_group, check_refusals):
            test(os.path.join(root, test.__name__))
    print("gptq agrees")


if __name__ == "__main__":
    main()
