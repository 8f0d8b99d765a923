# SPDX-License-Identifier: Apache-2.0
"""Other programs' packings, written from their documentation in numpy, bit by bit and without
haste: what the importers are judged by. Nothing here is shared with the library."""
import json
import os

import numpy as np
from safetensors.numpy import save_file


def save(folder, tensors, config=None, name="model.safetensors", config_name="config.json"):
    os.makedirs(folder, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()},
              os.path.join(folder, name))
    path = os.path.join(folder, config_name)
    if os.path.exists(path):
        os.remove(path)
    if config is not None:
        with open(path, "w") as file:
            json.dump(config, file)
    return folder


def stream(codes, bits, word):
    """Codes along the last axis as little-endian words, first code in the lowest bits."""
    codes = np.asarray(codes, "u1")
    flat = ((codes[..., None] >> np.arange(bits, dtype="u1")) & 1).reshape(*codes.shape[:-1], -1)
    pad = -flat.shape[-1] % word
    flat = np.concatenate([flat, np.zeros((*flat.shape[:-1], pad), "u1")], -1)
    packed = np.packbits(flat, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view(f"<i{word // 8}")


def planes(codes, bits):
    """32 codes along the last axis as `bits` words: of 3 bits, two words with the low two bits of
    each and one with the highest; 5 = 4 + 1, 6 = 4 + 2, 7 = 4 + 2 + 1."""
    codes = np.asarray(codes, "u4")
    codes = codes.reshape(*codes.shape[:-1], -1, 32)
    words, low = [], 0
    for width in {3: (2, 1), 5: (4, 1), 6: (4, 2), 7: (4, 2, 1)}[bits]:
        part = (codes >> np.uint32(low) & np.uint32((1 << width) - 1))
        part = part.reshape(*part.shape[:-1], width, 32 // width)
        shifts = (width * np.arange(32 // width)).astype("u4")
        words.append(np.bitwise_or.reduce(part << shifts, -1))
        low += width
    words = np.concatenate(words, -1)
    return words.reshape(*words.shape[:-2], -1).view("i4")


def gptq(u, zeros, scales, bits, word=32, g_idx=None, v1=True, planar=False):
    """u: [k, n] codes; zeros, scales: [groups, n]."""
    stored = (np.asarray(zeros) - (1 if v1 else 0)) % (1 << bits)
    pack = planes if planar else lambda codes, bits: stream(codes, bits, word)
    tensors = {"qweight": pack(u.T, bits).T, "qzeros": pack(stored, bits), "scales": scales}
    if g_idx is not None:
        tensors["g_idx"] = np.asarray(g_idx, "i4")
    return tensors


def dequantize(u, zeros, scales, g_idx):
    """[n, k]: scales * (u - zeros), one rounding."""
    return (scales.astype("f4")[g_idx] * (u.astype("f4") - zeros.astype("f4")[g_idx])).T


AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq_gemm(u):
    """[rows, n] codes -> int32 [rows, n / 8]."""
    rows, n = u.shape
    out = np.zeros((rows, n // 8), "u4")
    for i, column in enumerate(AWQ_ORDER):
        out |= u[:, column::8].astype("u4") << np.uint32(4 * i)
    return out.view("i4")


def awq_width(k, group):
    m = 1 if group >= 128 else 2 if group == 64 else 4
    return -(-(-(-(k // group) // 8)) // m) * m


def awq_fast(u):
    """[n, k] codes -> int16 [n / 4, k], as the writers' reshapes do it."""
    n, k = u.shape
    u = u.reshape(n, k // 32, 4, 4, 2).transpose(0, 1, 3, 2, 4).reshape(n, k // 32, 4, 4, 2)
    u = u.transpose(0, 1, 2, 4, 3).reshape(n, k)
    u = u.reshape(n // 4, 4, k // 64, 64).transpose(0, 2, 1, 3).reshape(n // 4, k // 64, 64, 4)
    u = u.astype("u2")
    out = u[..., 0] | u[..., 1] << 4 | u[..., 2] << 8 | u[..., 3] << 12
    return out.reshape(n // 4, k).view("i2")
