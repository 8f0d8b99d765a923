# SPDX-License-Identifier: Apache-2.0
"""A small random sentence encoder in torch: embeddings beside those of numpy."""
import unittest

import numpy as np

import bert

try:
    import torch

    import quern.torch as qt
except ImportError as why:
    missing = why.name or str(why)
else:
    missing = None

HEADS = 4


@unittest.skipIf(missing, f"quern.torch is not tested: no {missing}")
class Encoder(unittest.TestCase):
    def test_cosine(self):
        rng = np.random.default_rng(3)
        tensors = bert.random_tensors(rng)
        mask = (np.arange(19) < [[19], [7], [1]]).astype(np.int64)
        ids = rng.integers(0, 97, mask.shape) * mask
        wanted = bert.embed(tensors, ids, mask, HEADS)
        given = torch.from_numpy(ids), torch.from_numpy(mask)
        with torch.inference_mode():
            dense = bert.torch_model(tensors, HEADS)(*given).numpy()
            np.testing.assert_allclose(dense, wanted, atol=1e-5)
            for form, strategy, method, least in (
                    ("int8:pc", "float", "rtn", 0.9999), ("int8:pc", "int8-row", "rtn", 0.995),
                    ("int8:g32", "int8-block", "rtn", 0.995),
                    ("int4:g32:zp", "int8-block", "gptq", 0.98)):
                model = bert.torch_model(tensors, HEADS)
                done = qt.quantize_(model, form, strategy=strategy, method=method,
                                    calibration=[given] if method == "gptq" else None)
                self.assertEqual(len(done), 12)
                y = model(*given).numpy()
                self.assertGreater((y * wanted).sum(-1).min(), least, form)
                self.assertGreater(np.abs(y - dense).max(), 1e-6)


if __name__ == "__main__":
    unittest.main()
