# SPDX-License-Identifier: Apache-2.0
"""A small random sentence encoder in ONNX Runtime: embeddings beside those of numpy."""
import numpy as np

import bert
import quern
from ort_models import Case, claims, ours, peer

HEADS = 4
# Least cosine of three embeddings with those of f32, of 61 random encoders: int4:g32 0.973,
# int4:g32:zp 0.979, int4:g16 0.980, int4:g16:zp 0.983 (median 0.991).
FOUR_BITS = "int4:g16:zp"


class Encoder(Case):
    def setUp(self):
        super().setUp()
        self.tensors = bert.random_tensors(self.rng)
        self.mask = (np.arange(19) < [[19], [7], [1]]).astype(np.int64)
        self.ids = self.rng.integers(0, 97, self.mask.shape) * self.mask
        self.feeds = {"ids": self.ids, "mask": self.mask}
        self.wanted = bert.embed(self.tensors, self.ids, self.mask, HEADS)

    def near(self, session, least):
        y, = session.run(None, self.feeds)
        self.assertGreater((y * self.wanted).sum(-1).min(), least)
        found = claims(session)
        if found is not None:
            dense = [one for one in found if {"MatMul", "MatMulNBits"} & set(one)]
            self.assertEqual(len(dense), 12)
            self.assertTrue(all("Add" in one for one in dense), dense)
        return y

    def test_quantized_on_load(self):
        made = bert.onnx_model(self.tensors, HEADS)
        y, = peer(made).run(None, self.feeds)
        np.testing.assert_allclose(y, self.wanted, atol=1e-5)
        answers = [self.near(ours(made, quantize=form, strategy=strategy), least)
                   for form, strategy, least in (
                       ("int8:pc", "float", 0.9999), ("int8:pc", "int8-row", 0.995),
                       ("int8:g32", "int8-block", 0.995),
                       (FOUR_BITS, "int8-block", 0.98))]
        for one in answers:
            self.assertGreater(np.abs(one - y).max(), 1e-6)  # it was quantized indeed

    def test_four_bits_of_the_model(self):
        weights = {name.removesuffix(".weight"): quern.quantize(value, FOUR_BITS)
                   for name, value in self.tensors.items()
                   if name.removesuffix(".weight").endswith(bert.DENSE)}
        made = bert.onnx_model(self.tensors, HEADS, weights)
        values = {**self.tensors, **{f"{name}.weight": weight.dequantize()
                                     for name, weight in weights.items()}}
        wanted = bert.embed(values, self.ids, self.mask, HEADS)
        y = self.near(ours(made, strategy="float"), 0.98)
        np.testing.assert_allclose(y, wanted, atol=1e-5)
        self.near(ours(made), 0.98)
