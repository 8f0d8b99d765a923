# SPDX-License-Identifier: Apache-2.0
"""Files: what is saved is loaded, without copies where it may be; broken ones say what is wrong."""
import gc
import json
import os
import struct
import tempfile
import unittest

import numpy as np

import quern
from quern import errors

RNG = np.random.default_rng(3)


def safetensors(path, tensors):
    """{name: (dtype, shape, bytes)} as anybody writes it."""
    head, data, at = {}, b"", 0
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        data, at = data + raw, at + len(raw)
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def at(self, name):
        return os.path.join(self.folder, name)

    def test_round_trip(self):
        dense = RNG.normal(size=(16, 64)).astype(np.float32)
        weight = quern.quantize(dense, "int4:g32:zp")
        path = self.at("model.safetensors")
        quern.save(path, {"w": weight, "p": weight.pack(), "plain": dense,
                          "ids": np.arange(5, dtype=np.int64), "empty": np.empty((0, 3), "f4")},
                   metadata={"made": "here"})
        found = quern.load(path)
        self.assertEqual(sorted(found), ["empty", "ids", "p", "plain", "w"])
        self.assertEqual([found.kind_of(name) for name in ("w", "p", "ids")],
                         ["weight", "packed", "tensor"])
        self.assertEqual((found.kind, found.metadata["made"]), ("safetensors", "here"))
        self.assertEqual(found["w"].codes.tobytes(), weight.codes.tobytes())
        x = RNG.normal(size=(2, 64)).astype(np.float32)
        self.assertEqual(quern.matmul(x, found["p"]).tobytes(),
                         quern.matmul(x, weight.pack()).tobytes())
        self.assertEqual(found["empty"].shape, (0, 3))
        np.testing.assert_array_equal(found["ids"], np.arange(5))
        plain = found["plain"]
        self.assertFalse(plain.flags.writeable or plain.flags.owndata)
        packed = found["p"]
        del found
        gc.collect()  # what was taken keeps the file
        np.testing.assert_array_equal(plain, dense)
        self.assertEqual(quern.matmul(x, packed).shape, (2, 16))

    def test_memory(self):
        dense = RNG.normal(size=(16, 64)).astype(np.float32)
        weight = quern.quantize(dense, "int4:g32:zp")
        path = self.at("model.safetensors")
        quern.save(path, {"p": weight.pack(), "plain": dense})
        with open(path, "rb") as file:
            buffer = bytearray(file.read())
        room = np.zeros(len(buffer) + 64, np.uint8)
        start = -room.ctypes.data % 64
        aligned = room[start:start + len(buffer)]
        aligned[:] = np.frombuffer(buffer, np.uint8)
        found = quern.load(aligned, prefetch=True)
        self.assertIn("in memory", repr(found))
        np.testing.assert_array_equal(found["plain"], dense)
        x = RNG.normal(size=(2, 64)).astype(np.float32)
        expected = quern.matmul(x, weight.pack())
        packed = found["p"]
        del found, room, aligned
        gc.collect()  # what was taken keeps the buffer
        np.testing.assert_array_equal(quern.matmul(x, packed), expected)
        self.assertEqual(quern.load(path, prefetch=True, lock=True)["p"].shape, (16, 64))
        with self.assertRaisesRegex(errors.CorruptError, "in memory"):
            quern.load(bytearray(b"no file at all"))
        with self.assertRaisesRegex(errors.ArgumentError, "a path, or a buffer"):
            quern.load(17)

    def test_packed_buffers(self):
        weight = quern.quantize(RNG.normal(size=(16, 64)).astype(np.float32), "int4:g32:zp")
        packed = weight.pack()
        room = np.zeros(packed.nbytes + 64, np.uint8)
        start = -room.ctypes.data % 64
        buffer = room[start:start + packed.nbytes]
        into = weight.pack(into=buffer)
        self.assertEqual(buffer.tobytes(), packed.data.tobytes())
        self.assertFalse(packed.data.flags.writeable)
        there = quern.Packed.from_buffer(buffer)
        x = RNG.normal(size=(2, 64)).astype(np.float32)
        for other in (into, there):
            np.testing.assert_array_equal(quern.matmul(x, other), quern.matmul(x, packed))
        del room, buffer, into
        gc.collect()
        np.testing.assert_array_equal(quern.matmul(x, there), quern.matmul(x, packed))
        with self.assertRaises(errors.AlignError):
            quern.Packed.from_buffer(there.data[8:])
        with self.assertRaises(errors.CorruptError):
            quern.Packed.from_buffer(there.data[:100])
        with self.assertRaisesRegex(errors.ArgumentError, "read-only"):
            weight.pack(into=there.data)
        small = np.zeros(128, np.uint8)
        small = small[-small.ctypes.data % 64:][:64]
        with self.assertRaises(errors.ScratchError):
            weight.pack(into=small)

    def test_npy(self):
        array = RNG.normal(size=(3, 4)).astype(np.float32)
        quern.save(self.at("a.npy"), {"": array[:, ::2]})
        np.testing.assert_array_equal(np.load(self.at("a.npy")), array[:, ::2])
        np.save(self.at("b.npy"), array)
        found = quern.load(self.at("b.npy"))
        self.assertEqual((found.kind, list(found)), ("npy", [""]))
        np.testing.assert_array_equal(found[""], array)

    def test_conversions(self):
        half = RNG.normal(size=(3, 4)).astype(np.float16)
        bf16 = np.float32([1.5, -2.0]).view(np.uint32).__rshift__(16).astype(np.uint16)
        safetensors(self.at("m.safetensors"), {
            "half": ("F16", [3, 4], half.tobytes()), "odd": ("U8", [1], b"x"),
            "off": ("F32", [2], np.float32([1, 2]).tobytes()),  # not at a multiple of 4
            "bf16": ("BF16", [2], bf16.tobytes()), "strange": ("F4", [2], b"x")})
        found = quern.load(self.at("m.safetensors"))
        np.testing.assert_array_equal(found["half"], half)
        np.testing.assert_array_equal(found.read("half", "f32"), half.astype(np.float32))
        np.testing.assert_array_equal(found["off"], [1, 2])
        np.testing.assert_array_equal(found.read("bf16", "f32"), [1.5, -2.0])
        try:
            import ml_dtypes
        except ImportError:
            with self.assertRaisesRegex(errors.DtypeError, "install ml_dtypes"):
                found["bf16"]
        else:
            self.assertEqual(found["bf16"].dtype, ml_dtypes.bfloat16)
            self.assertEqual(found["bf16"].astype(np.float32).tolist(), [1.5, -2.0])
        for name, words in (("strange", "is of type F4"), ("nothing", "has nothing of the name")):
            with self.assertRaisesRegex(quern.QuernError, words):
                found[name]
        with self.assertRaisesRegex(errors.ShapeError, r"out has the shape \(2,\), 'half' \(3, 4"):
            found.read("half", out=np.empty(2, np.float32))
        with self.assertRaisesRegex(errors.DtypeError, "U8, which is not converted to f32"):
            found.read("odd", "f32")

    def test_folder_of_shards(self):
        one = {"a": np.ones(4, np.float32), "q": quern.quantize(np.eye(4, 32, dtype=np.float32))}
        quern.save(self.at("model-1.safetensors"), one)
        quern.save(self.at("model-2.safetensors"), {"b": np.zeros(3, np.float32)})
        index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors",
                                "q.codes": "model-1.safetensors", "q.scale": "model-1.safetensors"}}
        with open(self.at("model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump(index, file)
        for path in (self.folder, self.at("model.safetensors.index.json")):
            found = quern.load(path)
            self.assertEqual(sorted(found), ["a", "b", "q"])
            np.testing.assert_array_equal(found["q"].dequantize(), np.eye(4, 32))
            self.assertEqual(found["b"].tolist(), [0, 0, 0])
        os.remove(self.at("model-2.safetensors"))
        with self.assertRaisesRegex(quern.QuernError, "model-2.safetensors"):
            quern.load(self.folder)

    def test_somebody_elses_format(self):
        """GPTQ as its packages write it: 4 bits, groups of 32, zeros stored less one."""
        codes = RNG.integers(0, 16, (64, 16)).astype(np.uint32)  # [k, n]
        scales = (RNG.integers(1, 9, (2, 16)) / 16).astype(np.float16)
        shifts = np.arange(8, dtype=np.uint32) * 4
        qweight = (codes.reshape(8, 8, 16) << shifts[:, None]).sum(1, dtype=np.uint32)
        qzeros = (np.full((2, 2, 8), 7, np.uint32) << shifts).sum(2, dtype=np.uint32)
        safetensors(self.at("model.safetensors"), {
            "up.qweight": ("I32", [8, 16], qweight.tobytes()),
            "up.qzeros": ("I32", [2, 2], qzeros.tobytes()),
            "up.scales": ("F16", [2, 16], scales.tobytes()),
            "up.g_idx": ("I32", [64], (np.arange(64) // 32).astype(np.int32).tobytes()),
            "norm.weight": ("F32", [2], np.float32([1, 2]).tobytes())})
        with open(self.at("config.json"), "w", encoding="utf-8") as file:
            json.dump({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32,
                                               "sym": True, "desc_act": False}}, file)
        found = quern.load(self.folder)
        self.assertEqual((sorted(found), found.quantization), (["norm.weight", "up.weight"],
                                                               "gptq"))
        self.assertEqual(found.kind_of("up.weight"), "weight")
        self.assertIn("group: 32, config.json", found.provenance("up.weight"))
        wanted = (codes.astype(np.float32) - 8) * np.repeat(scales.astype(np.float32), 32, 0)
        np.testing.assert_array_equal(found["up.weight"].dequantize(), wanted.T)
        self.assertEqual(found.shape_of("up.weight"), (16, 64))
        packed = found.pack("up.weight")
        np.testing.assert_array_equal(packed.data, found["up.weight"].pack().data)
        twice = found.pack("up.weight", "up.weight", layout="q4n16", x_block=32, sums=False)
        self.assertEqual((twice.shape, twice.has_sums, twice.x_block), ((32, 64), False, 32))
        np.testing.assert_array_equal(twice.unpack().dequantize(), np.concatenate([wanted.T] * 2))
        with self.assertRaisesRegex(errors.DtypeError, "'norm.weight' is plain"):
            found.pack("up.weight", "norm.weight")
        with self.assertRaisesRegex(errors.ArgumentError, "the name of a weight"):
            found.pack()
        with self.assertRaisesRegex(errors.ArgumentError, "'found', 'v1'"):
            quern.load(self.folder, gptq_zeros="v3")

    def test_broken(self):
        with self.assertRaises(errors.OpenError) as caught:
            quern.load(self.at("nothing"))
        self.assertIsInstance(caught.exception, OSError)
        self.assertIn("nothing", str(caught.exception))
        with open(self.at("html"), "wb") as file:
            file.write(b"<html>404</html>" * 9)
        quern.save(self.at("good"), {"a": np.ones(64, np.float32)})
        with open(self.at("good"), "rb") as file:
            good = file.read()
        with open(self.at("short"), "wb") as file:
            file.write(good[:-3])
        for name in ("html", "short"):
            with self.assertRaises(errors.CorruptError) as caught:
                quern.load(self.at(name))
            self.assertIn(name, str(caught.exception))
            self.assertIsInstance(caught.exception.offset, (int, type(None)))
        with self.assertRaises(errors.QuernError):
            quern.load(os.path.join(self.folder, "no", "where"))

    def test_saving(self):
        path = self.at("x.safetensors")
        one = {"a": np.ones(4, np.float32)}
        quern.save(path, one)
        with self.assertRaises(FileExistsError) as caught:
            quern.save(path, one)
        self.assertIsInstance(caught.exception, errors.ExistsError)
        quern.save(path, one, overwrite=True)
        for values, words in (({"a": np.ones(8, "f4")[::2]}, "'a' has the strides"),
                              ({"a": object()}, "'a' is a object"),
                              ({"w": quern.quantize(np.ones((1, 32), "f4"), "int4:g32"),
                                "w.codes": np.ones(1, "f4")}, "w.codes")):
            with self.assertRaisesRegex(quern.QuernError, words):
                quern.save(self.at("y.safetensors"), values)
        self.assertEqual(os.listdir(self.folder), ["x.safetensors"])
        with self.assertRaisesRegex(errors.ArgumentError, "holds one array, not 2"):
            quern.save(self.at("y.npy"), {"a": one["a"], "b": one["a"]})
        with self.assertRaises(errors.OpenError):
            quern.save(os.path.join(self.folder, "no", "folder"), one)

    def test_weights_by_themselves(self):
        weight = quern.quantize(np.ones((4, 32), np.float32), "int4:g32")
        weight.save(self.at("w"))
        weight.pack().save(self.at("p"), "name")
        self.assertEqual(quern.load(self.at("w"))["weight"].shape, (4, 32))
        self.assertEqual(quern.load(self.at("p"))["name"].unpack().shape, (4, 32))


if __name__ == "__main__":
    unittest.main()
