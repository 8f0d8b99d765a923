#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What qn_export_create() writes, decoded by the programs that it is written for: autoawq,
gptqmodel, compressed-tensors and bitsandbytes, on the CPU. Their values are the weight's, bit for
bit where they multiply in f32. `make judges` installs them; build/judges has the sources of autoawq
and gptqmodel, of which a single file each is needed.
Environment: QUERN_LIBRARY. Exit status 77: a package is missing."""
import glob
import importlib.util
import os
import sys

try:
    import numpy as np
    import torch
    from test_exports import halves, make
except ImportError as missing:
    print(f"skipped: exports are not decoded by other programs: {missing.name} is not installed "
          "(make judges)")
    sys.exit(77)

from quern_checkpoint import DTYPES, Weight, same_bits

HERE = os.path.dirname(os.path.abspath(__file__))
JUDGES = os.path.join(HERE, "../../build/judges")
draw = np.random.default_rng(5)


def tensors(weight, target, **options):
    """{ending without its point: torch tensor}; bytes of types that numpy lacks are viewed."""
    types = {"F8_E4M3": torch.float8_e4m3fn, "BF16": torch.bfloat16}
    made = weight.export(target, **options)
    out = {}
    for ending, (dtype, shape, raw) in made.raw.items():
        plain = torch.from_numpy(np.frombuffer(raw, DTYPES[dtype]).reshape(shape).copy())
        out[ending[1:]] = plain.view(types[dtype]) if dtype in types else plain
    return out


def module_of(pattern):
    """A file of a package's source, alone; None: it is not there."""
    found = sorted(glob.glob(os.path.join(JUDGES, pattern)))
    if not found:
        return None
    spec = importlib.util.spec_from_file_location("judge", found[-1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_awq():
    awq = module_of("autoawq-*/awq/utils/packing_utils.py")
    if awq is None:
        return "autoawq"
    for n, k, group in ((64, 128, 32), (72, 256, 128), (8, 64, 64)):
        for has_zero in (True, False):
            w, *_ = make(4, n, k, group, has_zero)
            t = tensors(w, "awq")
            theirs = awq.dequantize_gemm(t["qweight"], t["qzeros"], t["scales"].float(), 4, group)
            same_bits(w.values(), theirs.T.contiguous().numpy(), f"autoawq {n} {k} {group}")
    return None


def check_gptq():
    planes = module_of("gptqmodel-*/gptqmodel/utils/planar_packing.py")
    if planes is None:
        return "gptqmodel"
    for bits in range(2, 9):
        for order in (False, True):
            w, *_ = make(bits, 64, 96, 32, True, order, least=0)
            t = tensors(w, "gptq_p")
            u = planes.planar_unpack_rows(t["qweight"], bits)
            z = planes.planar_unpack_cols(t["qzeros"], bits)
            g = t["g_idx"].long()
            theirs = (u - z[g]) * t["scales"].float()[g]
            same_bits(w.values(), theirs.T.contiguous().numpy(), f"gptqmodel {bits} bits")
    return None


FP4_CODES, FP8_CODES = 16, 0x7f # the codes below are numbers


def ct_weights():
    """(format of compressed-tensors, weight, target, arguments of QuantizationArgs)"""
    for bits in (2, 4, 8):
        for has_zero in (False, True):
            for group in (32, 96):
                w, *_ = make(bits, 64, 96, group, has_zero)
                yield "pack-quantized", w, "ct:pack-quantized", dict(
                    num_bits=bits, symmetric=not has_zero,
                    **({"strategy": "group", "group_size": 32} if group == 32
                       else {"strategy": "channel"}))
    for has_zero in (False, True):
        w, *_ = make(8, 24, 64, 64, has_zero)
        yield "int-quantized", w, "ct:int-quantized", dict(
            num_bits=8, symmetric=not has_zero, strategy="channel")
    u = draw.integers(0, FP4_CODES, (12, 96), dtype="u1")
    w = Weight("mxfp4", u, np.ldexp(np.float32(1), draw.integers(100, 140, (12, 3)) - 127))
    yield "mxfp4-pack-quantized", w, "ct", dict(num_bits=4, type="float", strategy="group",
                                                group_size=32)
    codes = draw.integers(1, FP8_CODES, (12, 6), dtype="u1") # scales: E4M3 over one global scale
    codes[0, 0] = FP8_CODES - 1
    e, m = codes >> 3, codes & 7
    real = np.where(e > 0, np.ldexp(1 + m / 8, e.astype(int) - 7), m * 2.0 ** -9)
    w = Weight("nvfp4", u, (real / np.float64(np.float32(1234.5678))).astype("f4"))
    yield "nvfp4-pack-quantized", w, "ct", dict(num_bits=4, type="float", group_size=16,
                                                strategy="tensor_group")
    codes = draw.integers(0, FP8_CODES, (12, 40), dtype="u1")
    yield "float-quantized", Weight("fp8:pc", codes, halves(12, 1)), "ct", dict(
        num_bits=8, type="float", strategy="channel")


def check_compressed_tensors():
    try:
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    except ImportError as missing:
        return f"compressed-tensors ({missing})"
    for kind, w, target, arguments in ct_weights():
        t = tensors(w, target)
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments))
        if "fp4" not in kind: # or it would round its products to the scales' type
            t["weight_scale"] = t["weight_scale"].float()
        judge = BaseCompressor.get_value_from_registry(kind)
        theirs = judge.decompress(t, scheme)["weight"]
        want = w.values()
        if "fp4" in kind: # computed in 16 bits; NVFP4's quotient is rounded before
            want = torch.from_numpy(want).to(theirs.dtype).float().numpy()
            far = np.abs(theirs.float().numpy() - want)
            assert (far <= 0.01 * np.abs(want)).all(), f"{kind}: {far.max()}"
        else:
            same_bits(want, theirs.float().numpy(), f"compressed-tensors {kind} {arguments}")
    return None


def check_bitsandbytes():
    try:
        from bitsandbytes import functional as bnb
    except ImportError as missing:
        return f"bitsandbytes ({missing})"
    for code, n, k, group in (("nf4", 16, 128, 64), ("nf4", 8, 256, 128), ("nf4", 64, 64, 64)):
        u = draw.integers(0, 16, (n, k), dtype="u1")
        w = Weight(f"{code}:g{group}", u, draw.uniform(0.01, 1, (n, k // group)).astype("f4"))
        t = tensors(w, "bnb")
        parts = {key.removeprefix("weight."): v for key, v in t.items() if key != "weight"}
        state = bnb.QuantState.from_dict(parts, torch.device("cpu"))
        state.dtype = torch.float32
        theirs = bnb.dequantize_4bit(t["weight"], state)
        same_bits(w.values(), theirs.numpy(), f"bitsandbytes {code} {n} {k}")
    most = draw.uniform(0.01, 9, 40).astype("f4")
    u = draw.integers(1, 256, (40, 32), dtype="u1")
    w = Weight("int8:pc", u, (most.astype("f8") / 127).astype("f4")[:, None])
    t = tensors(w, "bnb")
    theirs = bnb.int8_vectorwise_dequant(t["weight"], t["SCB"])
    assert np.allclose(theirs.numpy(), w.values(), rtol=3e-7, atol=0), "LLM.int8"
    return None


def main():
    judges = (check_awq, check_gptq, check_compressed_tensors, check_bitsandbytes)
    absent = [name for name in (judge() for judge in judges) if name is not None]
    for name in absent:
        print(f"skipped: {name} is not here to decode exports (make judges)")
    if len(absent) == len(judges):
        return 77
    print("other programs decode what is exported")
    return 0


if __name__ == "__main__":
    sys.exit(main())
