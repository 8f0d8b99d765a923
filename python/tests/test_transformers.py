# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers in the formats of other programs: the same logits as the
dense model with the same values, greedy text, and the checkpoint given back bit for bit."""
import copy
import json
import os
import sys
import tempfile
import unittest
import warnings

import numpy as np

import quern
from quern import errors

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../test/oracle"))
try:
    import torch
    import transformers
    from packers import awq_gemm, gptq, stream
    from safetensors.torch import load_file, save_file

    import quern.torch as qt
    import quern.transformers as qh
except ImportError as why:
    missing = why.name or str(why)
else:
    missing = None

SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=96, max_position_embeddings=64)


def small(kind, tied=False):
    torch.manual_seed(21)
    config = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}[kind]
    more = {"head_dim": 16} if kind == "qwen3" else {}
    made = getattr(transformers, config)(**SIZES, **more, tie_word_embeddings=tied,
                                         eos_token_id=1, bos_token_id=2, pad_token_id=0)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Values that the formats of the tests keep: 16-bit floats.
            value.copy_((torch.randn_like(value) * 0.2 + (1 if "norm" in name else 0)).half())
    return model


def quantized(w, group=32):
    """[n, k] -> codes [k, n], zeros and scales [groups, n] of 4 bits, and the values."""
    w = w.detach().float().numpy()
    n, k = w.shape
    parts = w.reshape(n, k // group, group)
    low, high = parts.min(-1), parts.max(-1)
    scale = ((high - low) / 15).astype("f2")
    zero = np.clip(np.rint(-low / scale.astype("f4")), 1, 15).astype("i4")
    u = np.clip(np.rint(parts / scale.astype("f4")[..., None]) + zero[..., None], 0, 15)
    values = (u - zero[..., None]) * scale.astype("f4")[..., None]
    return (u.reshape(n, k).T.astype("u1"), zero.T, scale.T,
            torch.from_numpy(values.reshape(n, k).astype("f4")))


def linears(model):
    return {name: layer for name, layer in model.named_modules()
            if isinstance(layer, torch.nn.Linear) and name != "lm_head"}


def as_gptq(u, z, s):
    groups = np.arange(u.shape[0]) // 32
    return gptq(u, z, s, 4, g_idx=groups, v1=False)


def as_awq(u, z, s):
    return {"qweight": awq_gemm(u), "qzeros": awq_gemm(z), "scales": s}


def as_compressed(u, z, s):
    return {"weight_packed": stream(u.T, 4, 32), "weight_scale": s.T,
            "weight_zero_point": stream(z, 4, 32).T,
            "weight_shape": np.array(u.T.shape, "i8")}


FORMATS = {
    "gptq": (as_gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False,
                       "sym": False, "checkpoint_format": "gptq_v2"}),
    "awq": (as_awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm",
                     "zero_point": True}),
    "compressed-tensors": (as_compressed, {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": False, "strategy": "group",
            "group_size": 32, "actorder": None}}}}),
}


def write_folder(model, folder, kind):
    """The model in a format of another program; the dense model gets the values that it holds."""
    pack, settings = FORMATS[kind]
    layers, tensors = linears(model), {}
    for name, value in model.state_dict().items():
        owner = name.removesuffix(".weight")
        if owner in layers and name.endswith(".weight"):
            u, z, s, values = quantized(value)
            for part, array in pack(u, z, s).items():
                tensors[f"{owner}.{part}"] = torch.from_numpy(np.array(array, order="C"))
            with torch.no_grad():
                layers[owner].weight.copy_(values)
        elif not (name == "lm_head.weight" and model.config.tie_word_embeddings):
            tensors[name] = value.half().contiguous().clone()
    os.makedirs(folder, exist_ok=True)
    save_file(tensors, f"{folder}/model.safetensors", {"format": "pt"})
    config = {**model.config.to_dict(), "quantization_config": settings, "dtype": "float16",
              "architectures": [type(model).__name__]}
    with open(f"{folder}/config.json", "w") as file:
        json.dump(config, file)
    model.generation_config.save_pretrained(folder)


# ---- GGUF ---------------------------------------------------------------------------------------

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm"}


def gguf_name(name):
    for whole, other in (("model.embed_tokens.", "token_embd."), ("model.norm.", "output_norm."),
                         ("lm_head.", "output.")):
        if name.startswith(whole):
            return other + name[len(whole):]
    _, _, i, rest = name.split(".", 3)
    path, last = rest.rsplit(".", 1)
    return f"blk.{i}.{NAMES[path]}.{last}"


def q8_0(w):
    """[n, k] -> (bytes, values): blocks of 32, a scale of 16 bits and signed bytes."""
    blocks = w.reshape(-1, 32)
    d = (np.abs(blocks).max(-1, keepdims=True) / 127).astype("f2")
    q = np.rint(blocks / d.astype("f4")).astype("i1")
    raw = np.concatenate([d.view("u1"), q.view("u1")], -1)
    return raw.tobytes(), (q.astype("f4") * d.astype("f4")).reshape(w.shape)


def write_gguf(model, path, arch):
    import gguf
    writer, config = gguf.GGUFWriter(path, arch), model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    if arch == "qwen3":
        writer.add_key_length(16)
        writer.add_value_length(16)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    state = model.state_dict(keep_vars=True)
    for name, value in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        w = value.detach().float().numpy()
        heads = {"q_proj": config.num_attention_heads,
                 "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        order = np.arange(w.shape[0])
        if heads and arch == "llama":  # the writer's order: row i of the file is row order[i]
            order = order.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1)
        if w.ndim == 1:
            writer.add_tensor(gguf_name(name), w[order])
            continue
        raw, values = q8_0(w[order])
        bytes_a_row = w.shape[1] // 32 * 34
        writer.add_tensor(gguf_name(name), np.frombuffer(raw, "u1").reshape(-1, bytes_a_row),
                          raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        back = np.empty_like(values)
        back[order] = values
        with torch.no_grad():
            value.copy_(torch.from_numpy(back))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@unittest.skipIf(missing, f"quern.transformers is not tested: no {missing}")
class Transformers(unittest.TestCase):
    def setUp(self):
        warnings.simplefilter("ignore")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)
        self.folder = os.path.join(self.place.name, "model")
        self.ids = torch.tensor([[5, 17, 3, 60, 9], [8, 2, 2, 41, 77]])

    def compare(self, dense, ours, quantized_layers=14):
        self.assertEqual(sum(isinstance(m, qt.Layer) for m in ours.modules()), quantized_layers)
        with torch.no_grad():
            want, got = dense(self.ids).logits, ours(self.ids).logits
        torch.testing.assert_close(got, want, atol=2e-3, rtol=2e-3)
        how = dict(max_new_tokens=12, do_sample=False)
        a, b = dense.generate(self.ids, **how), ours.generate(self.ids, **how)
        self.assertEqual(a.shape, b.shape)
        self.assertTrue(torch.equal(a, b))

    def test_folders(self):
        for kind in FORMATS:
            for family in ("llama", "qwen2"):
                with self.subTest(f"{kind}, {family}"):
                    folder = f"{self.folder}-{kind}-{family}"
                    dense = small(family, tied=family == "qwen2")
                    write_folder(dense, folder, kind)
                    ours = qh.from_pretrained(folder)
                    self.compare(dense, ours)
                    self.check_saved(ours, folder)

    def check_saved(self, ours, folder):
        """The same tensors, and the same words about them."""
        for save in (ours.save_pretrained, lambda to: qh.save_pretrained(ours, to)):
            with tempfile.TemporaryDirectory() as again:
                save(again)
                before, after = (load_file(f"{f}/model.safetensors") for f in (folder, again))
                self.assertEqual(sorted(before), sorted(after))
                for name, value in before.items():
                    self.assertEqual(value.dtype, after[name].dtype, name)
                    self.assertTrue(torch.equal(value, after[name]), name)
                words = [json.load(open(f"{f}/config.json"))["quantization_config"]
                         for f in (folder, again)]
                self.assertEqual(words[0], words[1])
                with torch.no_grad():
                    self.assertTrue(torch.equal(qh.from_pretrained(again)(self.ids).logits,
                                                ours(self.ids).logits))

    def by_transformers(self, folder, **how):
        """The model by transformers' own call; nothing that it says of missing or unknown tensors
        may concern ours."""
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **how)

    def test_by_transformers_itself(self):
        for kind in FORMATS:
            for family in ("llama", "qwen2"):
                with self.subTest(f"{kind}, {family}"):
                    folder = f"{self.folder}-{kind}-{family}"
                    dense = small(family, tied=family == "qwen2")
                    write_folder(dense, folder, kind)
                    ours, told = self.by_transformers(
                        folder, quantization_config=qh.QuernConfig(), output_loading_info=True)
                    self.assertFalse(told["missing_keys"] or told["unexpected_keys"] or
                                     told["mismatched_keys"] or told["error_msgs"], told)
                    self.compare(dense, ours)
                    self.check_saved(ours, folder)
        rough = self.by_transformers(f"{self.folder}-awq-llama", quantization_config=qh.QuernConfig(
            strategy="int8-block"))
        self.assertEqual({m.strategy for m in rough.modules() if isinstance(m, qt.Layer)},
                         {"int8-block"})

    def test_quantized_by_transformers_itself(self):
        """Dense weights are quantized when they are loaded; saved, they need no argument."""
        for tied in (False, True):
            folder = f"{self.folder}-{tied}"
            dense = small("llama", tied)
            dense.save_pretrained(folder)
            ours = self.by_transformers(folder, quantization_config=qh.QuernConfig(
                "int8:g32", strategy="int8-block", modules_to_not_convert=["lm_head", "q_proj"]))
            self.assertEqual(sum(isinstance(m, qt.Layer) for m in ours.modules()), 12)
            with torch.no_grad():
                logits, want = ours(self.ids).logits, dense(self.ids).logits
            self.assertLess((logits - want).norm() / want.norm(), 0.05)
            self.assertGreater((logits - want).norm(), 0)
            for i, save in enumerate((ours.save_pretrained,
                                      lambda to: qh.save_pretrained(ours, to))):
                save(f"{folder}-{i}")
                again = self.by_transformers(f"{folder}-{i}")
                self.assertEqual({m.strategy for m in again.modules() if isinstance(m, qt.Layer)},
                                 {"int8-block"})
                with torch.no_grad():
                    self.assertTrue(torch.equal(again(self.ids).logits, logits))
        ours = self.by_transformers(folder, quantization_config=qh.QuernConfig("int8:g32"))
        self.assertEqual(sum(isinstance(m, qt.Layer) for m in ours.modules()), 14)

    def test_bad_by_transformers_itself(self):
        dense = small("llama")
        dense.save_pretrained(self.folder)
        write_folder(dense, f"{self.folder}-gptq", "gptq")
        state = load_file(f"{self.folder}-gptq/model.safetensors")
        for kind, words, folder, config in (
                (errors.ArgumentError, "no layer's weights are quantized", self.folder, ()),
                (errors.ArgumentError, "quantized already", f"{self.folder}-gptq", ("int4:g32",)),
                (errors.FormatError, "int9", self.folder, ("int9:g3",)),
                (errors.ArgumentError, "strategy", self.folder, ("int4:g32", "int9"))):
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                self.by_transformers(folder, quantization_config=qh.QuernConfig(*config))
        del state["model.layers.1.mlp.up_proj.scales"]
        save_file(state, f"{self.folder}-gptq/model.safetensors", {"format": "pt"})
        with self.assertRaisesRegex(errors.QuernError, "model.layers.1.mlp.up_proj"):
            self.by_transformers(f"{self.folder}-gptq", quantization_config=qh.QuernConfig())

    def test_what_was_trained_is_saved(self):
        write_folder(small("llama"), self.folder, "gptq")
        ours = qh.from_pretrained(self.folder)
        with torch.no_grad():
            ours.model.norm.weight.fill_(2)
        ours.save_pretrained(f"{self.folder}-2")
        again = load_file(f"{self.folder}-2/model.safetensors")
        self.assertEqual(again["model.norm.weight"].tolist(), [2.0] * 64)
        ours.model.layers[0].mlp.up_proj = copy.deepcopy(ours.model.layers[1].mlp.up_proj)
        self.assertRaisesRegex(errors.ArgumentError, r"layers.0.mlp.up_proj is not.*quern_file",
                               ours.save_pretrained, f"{self.folder}-3")

    def test_gguf(self):
        try:
            import gguf  # noqa: F401
        except ImportError:
            self.skipTest("no package gguf")
        for arch, tied in (("llama", False), ("llama", True), ("qwen2", False), ("qwen3", True)):
            with self.subTest(f"{arch}, tied {tied}"):
                path = os.path.join(self.place.name, f"{arch}-{tied}.gguf")
                dense = small(arch, tied)
                write_gguf(dense, path, arch)
                ours = qh.from_pretrained(path)
                self.compare(dense, ours, 16)
                if tied:
                    self.assertIs(ours.lm_head.packed, ours.model.embed_tokens.packed)
                to = f"{self.folder}-{arch}-{tied}"
                qh.save_pretrained(ours, to)
                with open(path, "rb") as a, open(f"{to}/{os.path.basename(path)}", "rb") as b:
                    self.assertEqual(a.read(), b.read())
                self.assertRaisesRegex(ValueError, "not serializable", ours.save_pretrained, to)

    def test_quantized_here(self):
        """quantize_(), a quern file, and the model again."""
        for tied in (False, True):
            model = small("llama", tied)
            qt.quantize_(model, "int4:g32", strategy="int8-block",
                         calibration=[{"input_ids": self.ids}],
                         filter=lambda name, layer: name != "lm_head"
                         and isinstance(layer, torch.nn.Linear))
            folder = f"{self.folder}-{tied}"
            qh.save_pretrained(model, folder)
            again = qh.from_pretrained(folder, strategy="int8-block")
            with torch.no_grad():
                self.assertTrue(torch.equal(model(self.ids).logits, again(self.ids).logits))

    def test_other_heads_and_types(self):
        dense = small("llama")
        write_folder(dense, self.folder, "awq")
        base = qh.from_pretrained(self.folder, auto=transformers.AutoModel)
        with torch.no_grad():
            torch.testing.assert_close(base(self.ids).last_hidden_state,
                                       dense.model(self.ids).last_hidden_state, atol=2e-3,
                                       rtol=2e-3)
            half = qh.from_pretrained(self.folder, dtype=torch.bfloat16, strategy="int8-block")
            logits = half(self.ids).logits
            self.assertEqual(logits.dtype, torch.bfloat16)
            want = dense(self.ids).logits
            self.assertLess((logits - want).norm() / want.norm(), 0.1)

    def test_bad(self):
        dense = small("llama")
        write_folder(dense, self.folder, "gptq")
        for kind, words, call in (
                (errors.OpenError, "does not exist", lambda: qh.from_pretrained("/none/such")),
                (errors.ArgumentError, "strategy",
                 lambda: qh.from_pretrained(self.folder, strategy="int9"))):
            self.assertRaisesRegex(kind, words, call)
        state = load_file(f"{self.folder}/model.safetensors")
        gone = "model.layers.1.mlp.up_proj.scales"
        save_file({k: v for k, v in state.items() if k != gone}, f"{self.folder}/model.safetensors")
        self.assertRaisesRegex(errors.QuernError, "model.layers.1.mlp.up_proj",
                               qh.from_pretrained, self.folder)
        save_file({k: v for k, v in state.items() if "norm" not in k},
                  f"{self.folder}/model.safetensors")
        self.assertRaisesRegex(errors.NotFoundError, r"lacks 5 .*norm", qh.from_pretrained,
                               self.folder)
        parts = {"one": {k: v for k, v in state.items() if "layers.0" in k},
                 "two": {k: v for k, v in state.items() if "layers.0" not in k}}
        os.remove(f"{self.folder}/model.safetensors")
        for name, tensors in parts.items():
            save_file(tensors, f"{self.folder}/{name}.safetensors")
        with open(f"{self.folder}/model.safetensors.index.json", "w") as file:
            json.dump({"metadata": {}, "weight_map": {
                k: f"{name}.safetensors" for name, part in parts.items() for k in part}}, file)
        self.compare(dense, qh.from_pretrained(self.folder))
        os.remove(f"{self.folder}/two.safetensors")
        self.assertRaisesRegex(errors.QuernError, "two.safetensors", qh.from_pretrained,
                               self.folder)
        os.remove(f"{self.folder}/config.json")
        save_file(parts["two"], f"{self.folder}/two.safetensors")
        self.assertRaisesRegex(errors.NotFoundError, "no config.json", qh.from_pretrained,
                               self.folder)


if __name__ == "__main__":
    unittest.main()
