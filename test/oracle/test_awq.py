#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AWQ folders of all layouts, packed by packers.py, against qn_checkpoint, bit for bit; and the
traps of the format. Environment: QUERN_LIBRARY. Exit status 77: a package is missing."""
import os
import sys
import tempfile

try:
    import numpy as np
    from packers import awq_fast, awq_gemm, awq_width, dequantize, save, stream
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed (pip install numpy safetensors)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, refused, same_bits

draw = np.random.default_rng(4)


def config(**keys):
    return {"quantization_config": {"quant_method": "awq", "bits": 4, **keys}}


def make(k, n, group):
    u = draw.integers(0, 16, (k, n), dtype="u1")
    z = draw.integers(0, 16, (k // group, n))
    return u, z, draw.uniform(0.01, 1, (k // group, n)).astype("f2")


def named(tensors):
    return {f"m.{k}": v for k, v in tensors.items()}


def gemm(u, z, s):
    return {"qweight": awq_gemm(u), "qzeros": awq_gemm(z), "scales": s}


def gemv(u, z, s, group):
    width = awq_width(u.shape[0], group)
    groups, n = s.shape
    scales = np.full((n, 8 * width), 77, "f2") # padding that must not be read
    scales[:, :groups] = s.T
    zeros = np.full((n, 8 * width), 9, "u1")
    zeros[:, :groups] = z.T
    return {"qweight": stream(u.T, 4, 32), "qzeros": stream(zeros, 4, 32), "scales": scales}


def fast(u, z, s, group, name="qzeros", dtype="f2"):
    width = awq_width(u.shape[0], group)
    groups, n = s.shape
    scales, zeros = np.full((8 * width, n), 7, "f2"), np.full((8 * width, n), 7, "f2")
    scales[:groups] = s
    zeros[:groups] = -(s.astype("f4") * z).astype("f2")
    return {"qweight": awq_fast(u.T), "scales": scales.astype(dtype), name: zeros.astype(dtype)}


def check(folder, tensors, settings, want, what, name="config.json", importer="awq"):
    save(folder, named(tensors), settings, config_name=name)
    with Checkpoint(folder) as c:
        values, rounded = c.values("m.weight")
        same_bits(values, want, what)
        if rounded or c.module("m.weight").importer.decode() != importer:
            sys.exit(f"{what}: {rounded} rounded")
        for first, n in ((1, 6), (0, 8), (want.shape[0] - 5, 5), (0, 0)):
            same_bits(c.values("m.weight", first, n)[0], want[first:first + n], f"{what}, rows")
        return c.provenance("m.weight")


def check_gemm(folder):
    if awq_gemm(np.arange(8, dtype="u1")[None]).view("u4")[0, 0] != 0x75316420:
        sys.exit("packers.awq_gemm is wrong")
    for k, n, group in ((64, 64, 32), (128, 72, 128), (260, 200, 65), (36, 8, 36), (128, 128, 64)):
        u, z, s = make(k, n, group)
        want = dequantize(u, z, s, np.arange(k) // group)
        for settings in (config(group_size=group, version="gemm"), None):
            text = check(folder, gemm(u, z, s), settings, want, f"gemm {k} {n} {group}")
            if "layout: gemm" not in text:
                sys.exit(text)
    check(folder, gemm(u, z, s), {"w_bit": 4, "q_group_size": 64, "version": "GEMM"}, want,
          "quant_config.json", "quant_config.json")


def check_gemv(folder):
    for k, n, group in ((256, 64, 128), (1408, 24, 128), (704, 40, 64), (352, 16, 32),
                        (64, 32, 64)):
        u, z, s = make(k, n, group)
        want = dequantize(u, z, s, np.arange(k) // group)
        text = check(folder, gemv(u, z, s, group), config(group_size=group, version="gemv"), want,
                     f"gemv {k} {n} {group}")
        if "layout: gemv" not in text:
            sys.exit(text)
    # The widths that are documented for k = 11008.
    if awq_width(11008, 128) != 11 or awq_width(11008, 32) != 44:
        sys.exit("packers.awq_width is wrong")


def check_fast(folder):
    for k, n, group in ((256, 64, 128), (1408, 24, 128), (704, 40, 64), (64, 32, 32), (64, 64, 32)):
        u, z, s = make(k, n, group)
        g = np.arange(k) // group
        for name, dtype in (("qzeros", "f2"), ("scaled_zeros", "f2"), ("scaled_zeros", "f4")):
            tensors = fast(u, z, s, group, name, dtype)
            groups = len(s)
            # u s + zeros, with one rounding
            want = (tensors["scales"][:groups].astype("f8")[g] * u +
                    tensors[name][:groups].astype("f8")[g]).astype("f4").T
            settings = config(group_size=group, version="gemv_fast")
            text = check(folder, tensors, settings, want, f"fast {k} {n} {group}")
            if "layout: gemv_fast" not in text:
                sys.exit(text)
    # The label does not count: the same tensors with the name of another layout.
    check(folder, tensors, config(group_size=group, version="gemm"), want, "label")


def check_refusals(folder):
    u, z, s = make(128, 64, 64)
    good = gemm(u, z, s)
    cases = [
        (good, config(bits=8), "says 8 bits"),
        (good, config(version="marlin"), "marlin"),
        (good, config(group_size=32), "not what group_size says"),
        (good, {"quantization_config": {"quant_method": "gptq"}}, "says gptq"),
        ({**good, "qzeros": good["qzeros"][:1]}, config(), ".qzeros should be"),
        ({**good, "scales": good["scales"].astype("i2")}, config(), "f16, bf16 or f32"),
        ({k: v for k, v in good.items() if k != "scales"}, config(), ".scales is missing"),
        ({**good, "scales": np.full_like(s, np.nan)}, config(), "not finite"),
        (gemv(*make(256, 64, 128), 128), config(group_size=32), "are not those of"),
    ]
    for tensors, settings, words in cases:
        save(folder, named(tensors), settings)
        with Checkpoint(folder) as c:
            refused(words, c.values, "m.weight")


def main():
    with tempfile.TemporaryDirectory() as root:
        for test in (check_gemm, check_gemv, check_fast, check_refusals):
            test(os.path.join(root, test.__name__))
    print("awq agrees")


if __name__ == "__main__":
    main()
