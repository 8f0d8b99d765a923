# SPDX-License-Identifier: Apache-2.0
"""Every operation against numpy on the weights that quern says it multiplies with."""
import copy
import pickle
import unittest

import numpy as np

import quern
from quern import errors

RNG = np.random.default_rng(7)


def normal(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def packed(n, k, format="int4:g32", **how):
    weight = quern.quantize(normal(n, k), format, **how)
    return weight.pack(), weight.dequantize()


class Prepared(unittest.TestCase):
    def test_products(self):
        for strategy, symmetric, format in (("int8-row", False, "int4:pc"),
                                            ("int8-block", False, "int4:g32:zp"),
                                            ("int8-block", True, "int8:g32")):
            q, k = packed(48, 256, format)[0], packed(17, 256, format)[0]
            how = {"strategy": strategy, "symmetric": symmetric}
            x = normal(2, 3, 256)
            ready = quern.prepare(x, k, **how)
            self.assertEqual(ready.shape, (2, 3, 256))
            for w in (q, k):
                np.testing.assert_array_equal(quern.matmul(ready, w, act="silu", **how),
                                              quern.matmul(x, w, act="silu", **how))
            flat = quern.prepare(x[0], k, **how)
            np.testing.assert_array_equal(
                quern.grouped(flat, [q, q], ids=[1, 0, -1, 0], x_rows=[2, 0, 0, 2], **how),
                quern.grouped(x[0], [q, q], ids=[1, 0, -1, 0], x_rows=[2, 0, 0, 2], **how))
            with self.assertRaisesRegex(errors.ArgumentError, "was prepared for"):
                quern.matmul(ready, q)
        other = packed(8, 256, "int8:g64")[0]
        with self.assertRaises(errors.LayoutError):
            quern.matmul(quern.prepare(x, q, strategy="int8-block"), other, strategy="int8-block")
        with self.assertRaises(errors.ArgumentError):
            quern.prepare(x, q, strategy="float")


class Finish(unittest.TestCase):
    def test_activations(self):
        w, dense = packed(48, 256)
        x = normal(3, 256)
        v = x @ dense.T
        hard = np.clip(v / 6 + 0.5, 0, 1)
        for act, expected in (("sigmoid", 1 / (1 + np.exp(-v))), ("tanh", np.tanh(v)),
                              ("hardswish", v * hard), ("hardsigmoid", hard),
                              ("leaky_relu", np.where(v < 0, 0.01 * v, v))):
            np.testing.assert_allclose(quern.matmul(x, w, act=act), expected, atol=2e-4, rtol=1e-4)
        np.testing.assert_allclose(quern.matmul(x, w, act="leaky_relu", leaky_slope=0.2),
                                   np.where(v < 0, 0.2 * v, v), atol=2e-4, rtol=1e-4)
        np.testing.assert_allclose(
            quern.matmul(x, w, act="hardsigmoid", hard_slope=0.2, hard_shift=0.4),
            np.clip(0.2 * v + 0.4, 0, 1), atol=2e-4, rtol=1e-4)
        with self.assertRaises(TypeError):
            quern.matmul(x, w, leaky=0.2)

    def test_gates(self):
        w, dense = packed(64, 256)
        x = normal(2, 3, 256)
        v = x @ dense.T
        silu = v / (1 + np.exp(-v))
        for gate, expected in (("halves", silu[..., :32] * v[..., 32:]),
                               ("pairs", silu[..., ::2] * v[..., 1::2])):
            for _ in range(2):
                y = quern.matmul(x, w, act="silu", gate=gate)
                self.assertEqual(y.shape, (2, 3, 32))
                np.testing.assert_allclose(y, expected, atol=5e-3, rtol=1e-3)
        factor = normal(2, 3, 64)
        np.testing.assert_allclose(quern.matmul(x, w, act="silu", factor=factor), silu * factor,
                                   atol=5e-3, rtol=1e-3)
        y = quern.grouped(x[0], [w, w], ids=[1, 0, 1], act="silu", gate="halves")
        np.testing.assert_allclose(y, (silu[..., :32] * v[..., 32:])[0], atol=5e-3, rtol=1e-3)
        with self.assertRaises(errors.ShapeError):
            quern.matmul(x, packed(40, 256)[0], gate="halves")
        with self.assertRaises(errors.ArgumentError):
            quern.matmul(x, w, gate="thirds")

    def test_codes(self):
        w, dense = packed(48, 256)
        x = normal(3, 256)
        residual = RNG.integers(0, 255, (3, 48), dtype=np.uint8)
        v = x @ dense.T + 0.25 * (residual.astype(np.float32) - 7)
        for strategy in ("float", "int8-row"):
            y = quern.matmul(x, w, residual=residual, residual_scale=0.25, residual_zero=7,
                             dtype="i8", y_scale=0.5, y_zero=-3, strategy=strategy)
            self.assertEqual(y.dtype, np.int8)
            expected = np.clip(np.rint(v / 0.5) - 3, -128, 127)
            self.assertLessEqual(np.abs(y - expected).max(), 1 if strategy == "float" else 3)
        with self.assertRaises(errors.BadValueError):
            quern.matmul(x, w, residual=residual, residual_scale=0.0)


class Matmul(unittest.TestCase):
    def test_values(self):
        for format in ("int4:g32", "int8:pc", "nf4:g64", "q4_k", "int4:g32:zp", "fp8:pc"):
            w, dense = packed(48, 256, format)
            for shape in ((256,), (1, 256), (5, 256), (2, 3, 256), (0, 256)):
                x = normal(*shape)
                for _ in range(3):  # planned, prepared, prepared again
                    y = quern.matmul(x, w)
                    self.assertEqual(y.shape, shape[:-1] + (48,))
                    np.testing.assert_allclose(y, x @ dense.T, rtol=1e-4, atol=2e-3)

    def test_the_fast_way_is_the_slow_way(self):
        w, _ = packed(32, 128)
        x = normal(4, 128)
        for how in ({}, {"strategy": "int8-block"}, {"act": "silu"}, {"dtype": "f16"},
                    {"strategy": "int8-row", "act": "relu", "dtype": np.float16}):
            first = quern.matmul(x, w, **how)
            self.assertTrue(w._ready)
            again = quern.matmul(x, w, **how)
            x.flags.writeable = False
            slow = quern.matmul(x, w, **how)
            x.flags.writeable = True
            self.assertEqual(first.tobytes(), again.tobytes())
            self.assertEqual(first.tobytes(), slow.tobytes())
            self.assertEqual(first.dtype, again.dtype)

    def test_what_is_remembered_is_bounded(self):
        w, _ = packed(16, 32)
        for m in range(1, 200):
            quern.matmul(np.ones((m, 32), np.float32), w)
        self.assertLessEqual(len(w._ready), 64)

    def test_epilogue(self):
        w, dense = packed(16, 64)
        x, bias, rest = normal(3, 64), normal(16), normal(3, 16)
        rows, columns = normal(3), normal(16)
        y = quern.matmul(x, w, bias=bias, residual=rest, row_scale=rows, col_scale=columns,
                         act="relu", clamp=(0.25, 1.5))
        v = np.maximum((x @ dense.T) * rows[:, None] * columns + bias + rest, 0)
        np.testing.assert_allclose(y, np.clip(v, 0.25, 1.5), atol=1e-3)
        after = quern.matmul(x, w, residual=rest, residual_after=True, act="relu")
        np.testing.assert_allclose(after, np.maximum(x @ dense.T, 0) + rest, atol=1e-3)

    def test_strides_are_followed(self):
        w, dense = packed(16, 64)
        x = normal(6, 100)
        np.testing.assert_allclose(quern.matmul(x[::2, :64], w), x[::2, :64] @ dense.T, atol=1e-3)
        out = np.zeros((6, 40), np.float32)
        self.assertIsNone(quern.matmul(x[:, :64], w, out[:, 8:24]).base.base)
        np.testing.assert_allclose(out[:, 8:24], x[:, :64] @ dense.T, atol=1e-3)
        self.assertFalse(out[:, :8].any() or out[:, 24:].any())
        same = np.broadcast_to(x[0, :64], (4, 64))  # stride 0
        np.testing.assert_allclose(quern.matmul(same, w), same @ dense.T, atol=1e-3)

    def test_static(self):
        weight = quern.quantize(np.sign(normal(8, 32)) * 127, "int8:pc")
        x = RNG.integers(-128, 127, (3, 32)).astype(np.int8)
        y = quern.matmul(x, weight.pack(), strategy="int8-static", x_scale=0.5, x_zero=3)
        np.testing.assert_allclose(y, (x.astype(np.float32) - 3) * 0.5 @ weight.dequantize().T)
        codes = quern.matmul(x, weight.pack(), strategy="int8-static", dtype="i8", y_scale=900.0)
        self.assertEqual(codes.dtype, np.int8)

    def test_half(self):
        w, dense = packed(16, 64)
        x = normal(3, 64, dtype=np.float16)
        y = quern.matmul(x, w)
        self.assertEqual(y.dtype, np.float16)
        np.testing.assert_allclose(y, x.astype(np.float32) @ dense.T, atol=2e-2)

    def test_dlpack_of_anybody(self):
        class Theirs:  # not an array of numpy's: only what the protocol promises
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **_):
                return self.array.__dlpack__()

        w, _ = packed(16, 64)
        x = normal(3, 64)
        y = quern.matmul(Theirs(x), w)
        self.assertEqual(y.tobytes(), quern.matmul(x, w).tobytes())
        out = np.empty((3, 16), np.float32)
        quern.matmul(x, w, Theirs(out))
        self.assertEqual(y.tobytes(), out.tobytes())
        self.assertEqual(np.from_dlpack(y).tobytes(), y.tobytes())

    def test_plan_explains(self):
        w, _ = packed(64, 128)
        plan = quern.plan("matmul", w, x=(8, 128), strategy="int8-block")
        self.assertIn(plan.kernel, plan.explain())
        self.assertTrue(plan.is_exact)
        self.assertEqual(plan.ops, 2 * 8 * 64 * 128)
        self.assertGreater(plan.scratch_bytes, 0)
        self.assertEqual(quern.explain("matmul", w, (8, 128), strategy="int8-block"),
                         plan.explain())
        with self.assertRaisesRegex(quern.errors.UnsupportedError, "none_such"):
            quern.plan("matmul", w, (8, 128), kernel="none_such")
        why = quern.explain("matmul", w, (8, 128), kernel="none_such")
        self.assertIn("no kernel serves this", why.splitlines()[0])
        self.assertIn(plan.kernel, why)


class Grouped(unittest.TestCase):
    def test_ids_and_offsets(self):
        experts, dense = zip(*[packed(16, 64) for _ in range(3)])
        x, ids = normal(6, 64), np.array([2, 0, 0, -1, 1, 2], np.int32)
        y = quern.grouped(x, experts, ids=ids)
        wanted = np.stack([x[i] @ dense[e].T if e >= 0 else np.zeros(16) for i, e in
                           enumerate(ids)])
        np.testing.assert_allclose(y, wanted, atol=1e-3)
        y = quern.grouped(x, experts, offsets=[0, 2, 2, 6], bias=normal(3, 16) * 0)
        wanted = np.concatenate([x[:2] @ dense[0].T, x[2:] @ dense[2].T])
        np.testing.assert_allclose(y, wanted, atol=1e-3)
        top = quern.grouped(x[:2], experts, ids=[0, 1, 2, 0], x_rows=[0, 0, 1, 1])
        np.testing.assert_allclose(top[2], x[1] @ dense[2].T, atol=1e-3)


def convolved(x, w, stride, pad):
    """Plain loops: x [n, ci, h, w], w [co, kh, kw, ci]."""
    n, _, h, width = x.shape
    co, kh, kw, _ = w.shape
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    oh, ow = (h + 2 * pad - kh) // stride + 1, (width + 2 * pad - kw) // stride + 1
    y = np.zeros((n, co, oh, ow), np.float32)
    for i in range(oh):
        for j in range(ow):
            patch = x[:, :, i * stride:i * stride + kh, j * stride:j * stride + kw]
            y[:, :, i, j] = np.einsum("nchw,ohwc->no", patch, w)
    return y


class Convolution(unittest.TestCase):
    def test_conv2d(self):
        dense = normal(8, 6, 3, 3)
        weight = quern.quantize(dense, "int8:pc")
        self.assertEqual((weight.shape, weight.kernel_size), ((8, 54), (3, 3)))
        self.assertTrue(quern.compare(dense, weight).passes(35))
        values = weight.dequantize().reshape(8, 3, 3, 6)
        x = normal(2, 6, 7, 9)
        for stride, pad in ((1, 0), (1, 1), (2, 1)):
            wanted = convolved(x, values, stride, pad)
            y = quern.conv2d(x, weight.pack(), stride=stride, padding=pad)
            np.testing.assert_allclose(y, wanted, atol=1e-3)
            last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
            y = quern.conv2d(last, weight.pack(), stride=stride, padding=pad, image="nhwc")
            np.testing.assert_allclose(y.transpose(0, 3, 1, 2), wanted, atol=1e-3)
        again = quern.quantize(np.ascontiguousarray(dense.transpose(0, 2, 3, 1)), "int8:pc",
                               order="ohwi")
        self.assertEqual(again.codes.tobytes(), weight.codes.tobytes())

    def test_one_dimension(self):
        weight = quern.quantize(normal(8, 6, 3), "int8:pc")
        x = normal(2, 6, 11)
        y = quern.conv2d(x, weight.pack(), padding=(0, 1))
        wanted = convolved(np.pad(x, ((0, 0), (0, 0), (1, 1)))[:, :, None],
                           weight.dequantize().reshape(8, 1, 3, 6), 1, 0)[:, :, 0]
        np.testing.assert_allclose(y, wanted, atol=1e-3)

    def test_transposed(self):
        for groups in (1, 2):
            dense = normal(6, 4, 2, 2)  # torch: [ci, co / groups, kh, kw]
            weight = quern.quantize(dense, "int8:pt", order="iohw", conv_groups=groups)
            values = weight.dequantize().reshape(4 * groups, 2, 2, 6 // groups)
            x = normal(1, 6, 3, 3)
            wanted = np.zeros((1, 4 * groups, 6, 6), np.float32)
            for i in range(3):
                for j in range(3):
                    for o in range(4 * groups):
                        g = o // 4
                        part = x[0, g * (6 // groups):(g + 1) * (6 // groups), i, j]
                        wanted[0, o, 2 * i:2 * i + 2, 2 * j:2 * j + 2] += values[o] @ part
            y = quern.conv_transpose2d(x, weight.pack(), stride=2)
            np.testing.assert_allclose(y, wanted, atol=1e-3)
            # And the values are those of torch's order.
            g, ci = groups - 1, 6 // groups
            self.assertAlmostEqual(values[g * 4 + 1, 0, 1, 2], dense[g * ci + 2, 1, 0, 1],
                                   delta=0.05)

    def test_plan(self):
        w = quern.quantize(normal(8, 32, 3, 3), "int8:pc").pack()
        plan = quern.plan("conv2d", w, x=(1, 32, 8, 8), padding=1, strategy="int8-static",
                          x_dtype="i8")
        self.assertIn("conv2d", plan.explain())


class Weights(unittest.TestCase):
    def test_two_levels(self):
        weight = quern.quantize(normal(8, 512), "q4_k", method="search")
        self.assertEqual((weight.super_scale.shape, weight.sub_min.dtype), ((8, 2), np.int16))
        for common, of_group, product in ((weight.super_scale, weight.sub_scale, weight.scale),
                                          (weight.super_min, weight.sub_min, -weight.offset)):
            np.testing.assert_array_equal(np.repeat(common, 8, 1) * of_group, product)
        self.assertIsNone(quern.quantize(normal(8, 64), "int4:g32").super_scale)

    def test_search_of_super_blocks(self):
        dense = np.random.default_rng(3).standard_normal((64, 1024)).astype("f4")
        # Integers rounded one by one give 0.269, 0.0727 and 0.0168.
        for name, most in (("q2_k", 0.265), ("q4_k", 0.0715), ("q6_k", 0.01676)):
            error = quern.quantize(dense, name, method="search").dequantize() - dense
            self.assertLess(np.linalg.norm(error) / np.linalg.norm(dense), most, name)

    def test_parts_are_views(self):
        weight = quern.quantize(normal(8, 64), "int4:g32:zp")
        codes, scale, zero = weight.codes, weight.scale, weight.zero
        self.assertFalse(codes.flags.writeable or scale.flags.owndata)
        values = (codes.astype(np.int32) - 8).reshape(8, 2, 32) - zero[..., None]
        wanted = (values * scale[..., None]).reshape(8, 64)
        np.testing.assert_array_equal(wanted.astype(np.float32), weight.dequantize())
        self.assertIsNone(weight.offset)
        del weight  # a view keeps what it shows
        self.assertEqual(codes.shape, (8, 64))
        self.assertLess(int(codes.max()), 16)

    def test_round_trips(self):
        samples = normal(64, 64)
        for how in ({"format": "int4:g32:zp"}, {"format": "nf4:g64"}, {"format": "q4_k"},
                    {"format": "q6_k"},
                    {"format": "int4:g32", "method": "gptq", "samples": samples,
                     "act_order": True},
                    {"format": "int4:g32", "prescale": np.full(64, 0.5)}):
            weight = quern.quantize(normal(8, 256 if how["format"].endswith("k") else 64), **how)
            for other in (pickle.loads(pickle.dumps(weight)), copy.deepcopy(weight),
                          weight.pack().unpack(),
                          pickle.loads(pickle.dumps(weight.pack())).unpack()):
                self.assertEqual(other.format, weight.format)
                for part in ("codes", "scale", "zero", "offset", "perm", "prescale",
                             "super_scale", "super_min", "sub_scale", "sub_min"):
                    a, b = getattr(weight, part), getattr(other, part)
                    self.assertEqual(a is None, b is None, part)
                    if a is not None:
                        np.testing.assert_array_equal(a, b)

    def test_two_levels(self):
        """Parts with both levels of the scales, which make scales and minima."""
        for name in ("q4_k", "q3_k"):
            weight = quern.quantize(normal(8, 512), name)
            levels = {part: getattr(weight, part)
                      for part in ("super_scale", "super_min", "sub_scale", "sub_min")}
            made = quern.Weight.from_parts(weight.codes, None, name, **levels)
            for part in ("codes", "scale", "offset", *levels):
                a, b = getattr(weight, part), getattr(made, part)
                self.assertEqual(a is None, b is None, part)
                if a is not None:
                    np.testing.assert_array_equal(a, b)
        with self.assertRaisesRegex(quern.errors.ShapeError, "sub_scale has the shape"):
            quern.Weight.from_parts(weight.codes, None, name, super_scale=levels["super_scale"],
                                    sub_scale=levels["sub_scale"][:, 1:])
        wrong = np.array(weight.scale)
        wrong[3, 1] *= 2
        with self.assertRaisesRegex(quern.errors.BadValueError,
                                    "row 3, group 1 is not the product"):
            quern.Weight.from_parts(weight.codes, wrong, name,
                                    **{k: v for k, v in levels.items() if v is not None})

    def test_slices_and_joins(self):
        weight = quern.quantize(normal(8, 128), "int4:g32")
        dense = weight.dequantize()
        part = weight.slice(slice(2, 6), slice(32, 96))
        np.testing.assert_array_equal(part.dequantize(), dense[2:6, 32:96])
        joined = quern.Weight.concat([weight, weight.slice(slice(1, 3))])
        np.testing.assert_array_equal(joined.dequantize(), np.concatenate([dense, dense[1:3]]))

    def test_rows(self):
        weight = quern.quantize(normal(32, 64), "int4:g32")
        dense, ids = weight.dequantize(), np.array([[3, 3], [31, 0]])
        for table in (weight, weight.pack()):
            np.testing.assert_array_equal(table.rows(ids), dense[ids])
            self.assertEqual(table.rows([1], dtype="f16").dtype, np.float16)

    def test_methods_and_scales(self):
        w, x = normal(16, 64), normal(40, 64)
        rtn = quern.compare(w, quern.quantize(w, "int3:g32"))
        search = quern.compare(w, quern.quantize(w, "int3:g32", method="search"))
        self.assertGreaterEqual(search.sqnr_db, rtn.sqnr_db)
        for s in (quern.smooth_scales(w, np.abs(x).max(0)), quern.awq_scales(w, x, "int4:g32")):
            self.assertEqual((s.shape, s.dtype), ((64,), np.float32))
            self.assertTrue((s > 0).all())

    def test_progress(self):
        seen = []
        quern.quantize(normal(256, 64), "int4:g32", progress=lambda *at: seen.append(at))
        self.assertEqual(seen[-1], (256, 256))

        class Bar:  # as tqdm's
            n, total = 0, None

            def update(self, steps):
                self.n += steps

        bar = Bar()
        quern.quantize(normal(256, 64), "int4:g32", progress=bar)
        self.assertEqual((bar.n, bar.total), (256, 256))


class Rows(unittest.TestCase):
    def test_zero_points(self):
        x = np.array([[0, 2, -3], [-2.5, 1.34, 0.5]], np.float32)
        found = quern.quantize_rows(x, "tensor", dtype="u8", zero_points=True, sums=True)
        self.assertEqual(found.codes.tolist(), [[153, 255, 0], [26, 221, 179]])
        self.assertEqual((found.zero.tolist(), found.sum.tolist()), ([[153]], [[408], [426]]))
        again = quern.quantize_rows(x, "tensor", dtype="u8", scale=found.scale, zero=153)
        np.testing.assert_array_equal(again.codes, found.codes)
        rows = quern.quantize_rows(x, 2, dtype="i8", zero_points=True)
        self.assertEqual((rows.scale.shape, rows.zero.dtype.name), ((2, 2), "int8"))
        with self.assertRaisesRegex(errors.ArgumentError, "without scale"):
            quern.quantize_rows(x, zero=3)
        with self.assertRaisesRegex(errors.ArgumentError, "tensor"):
            quern.quantize_rows(x, "tensor")
        with self.assertRaises(errors.BadValueError):
            quern.quantize_rows(x, scale=0.0)

    def test_quantize_rows(self):
        x = normal(5, 96)
        for block, symmetric, dtype in ((0, True, "i8"), (32, True, "i8"), (32, False, "i8"),
                                        (64, False, "u8")):
            found = quern.quantize_rows(x, block, symmetric=symmetric, dtype=dtype, sums=True)
            size = block or 96
            scale = np.repeat(found.scale, size, 1)[:, :96]
            back = scale * found.codes
            if not symmetric:
                back = back + np.repeat(found.offset, size, 1)[:, :96]
            np.testing.assert_allclose(back, x, atol=0.02)
            sums = np.add.reduceat(found.codes.astype(np.int32), np.arange(0, 96, size), 1)
            np.testing.assert_array_equal(found.sum, sums)


class Compared(unittest.TestCase):
    def test_not_finite_fails(self):
        a = normal(4, 4)
        for bad in (np.nan, np.inf):
            b = a.copy()
            b[1, 2] = bad
            for pair in ((a, b), (b, a), (b, b)):
                found = quern.compare(*pair)
                self.assertFalse(found.is_finite or found.passes(-1000))
        self.assertTrue(quern.compare(a, a).passes(1e9))
        self.assertFalse(quern.compare(np.zeros(4), np.ones(4)).passes(0))


if __name__ == "__main__":
    unittest.main()
