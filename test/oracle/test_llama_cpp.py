#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GGUF files that quern makes of Hugging Face folders, in llama.cpp (llama-cpp-python): they load,
text is cut into the same tokens as the tokenizers package cuts it, and the logits are those of the
model in numpy with the values that the folder holds. Small random models of each architecture.
Environment: QUERN_LIBRARY. Exit status 77: a package is missing."""
import json
import os
import sys
import tempfile

try:
    import llama_cpp
    import numpy as np
    from hf_models import ARCHITECTURES, TEXTS, HfModel, distance
except ImportError as missing:
    print(f"skipped: GGUF files are not loaded in llama.cpp: {missing.name} is not installed "
          "(pip install llama-cpp-python tokenizers)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, needs_program, quern

# llama.cpp multiplies by 8-bit activations, and keeps keys and values in 16 bits; rows of q and k
# in the wrong order, or norms without their 1, give 0.5 and more.
FLOATS, QUANTIZED = 0.02, 0.08
TOKENS = list(range(5, 45))


class Loaded:
    def __init__(self, path):
        self.model = llama_cpp.Llama(path, logits_all=True, verbose=False, n_ctx=128, n_threads=1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.model.close()

    def logits(self):
        self.model.reset()
        self.model.eval(TOKENS)
        return np.array(self.model.scores[:len(TOKENS)], "f8")

    def tokens(self, text):
        return self.model.tokenize(text.encode(), add_bos=False, special=False)


def close(path, want, bound):
    with Loaded(path) as l:
        far = distance(l.logits(), want)
        if not far < bound:
            sys.exit(f"{path}: llama.cpp's logits are {far:.3f} away, more than {bound}")


def check_tokens(path, folder):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        print("without the tokenizers package, tokens are not compared")
        return
    theirs = Tokenizer.from_file(f"{folder}/tokenizer.json")
    with Loaded(path) as l:
        for text in TEXTS:
            want = theirs.encode(text, add_special_tokens=False).ids
            if l.tokens(text) != want:
                sys.exit(f"{path}: {text!r} is {l.tokens(text)}, not {want}")


def check_architecture(kind):
    m = HfModel(kind)
    m.write(kind)
    quern("convert", kind, "-o", f"{kind}.gguf", "--to", "gguf", "--quiet")
    close(f"{kind}.gguf", m.logits(TOKENS), FLOATS)
    check_tokens(f"{kind}.gguf", kind)
    quern("quantize", kind, "-o", f"{kind}-q8.gguf", "--to", "gguf:q8_0", "--quiet")
    close(f"{kind}-q8.gguf", m.logits(TOKENS), QUANTIZED)
    # Four bits are far from the model, and near what the folder holds.
    quern("quantize", kind, "-o", f"{kind}-awq", "--to", "awq", "--format", "int4:g32:zp:f16",
          "--quiet")
    quern("convert", f"{kind}-awq", "-o", f"{kind}-awq.gguf", "--to", "gguf", "--quiet")
    with Checkpoint(f"{kind}-awq") as c:
        held = {name: c.values(name)[0] for name in c.names()
                if c.module(name).importer == b"awq"}
    assert len(held) == 7 * m.layers, held.keys()
    close(f"{kind}-awq.gguf", m.logits(TOKENS, held), QUANTIZED)
    assert distance(m.logits(TOKENS, held), m.logits(TOKENS)) > 1.5 * QUANTIZED


PARTS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}


def check_k_quants():
    """Against the values of the GGUF file's blocks; heads of q and k are in pairs of rows there."""
    m = HfModel("llama", width=256, tied=True)
    m.write("wide")
    for to in ("q2_k", "q4_k", "q6_k"):
        quern("quantize", "wide", "-o", f"{to}.gguf", "--to", f"gguf:{to}", "--quiet")
        held = {}
        with Checkpoint(f"{to}.gguf") as c:
            for i in range(m.layers):
                for theirs, ours in PARTS.items():
                    x = c.values(f"blk.{i}.{theirs}.weight")[0]
                    if theirs in ("attn_q", "attn_k"):
                        x = x.reshape(-1, m.dim // 2, 2, x.shape[1]).transpose(0, 2, 1, 3)
                    held[f"model.layers.{i}.{ours}.weight"] = x.reshape(-1, x.shape[-1])
        close(f"{to}.gguf", m.logits(TOKENS, held), QUANTIZED)


def check_rotations():
    """Scaled rotations of Llama 3.1, and linear ones; each makes a difference here."""
    for kind, scaling in (
            ("llama", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
            ("qwen2", {"rope_type": "linear", "factor": 4.0}),
            ("gemma3_text", {"rope_type": "linear", "factor": 8.0})):
        m = HfModel(kind, scaling=scaling)
        name = f"{kind}-{scaling['rope_type']}"
        m.write(name)
        quern("convert", name, "-o", f"{name}.gguf", "--to", "gguf", "--quiet")
        close(f"{name}.gguf", m.logits(TOKENS), FLOATS)
        assert distance(HfModel(kind).logits(TOKENS), m.logits(TOKENS)) > 2 * FLOATS, name


def check_tokenizer_files():
    """More tokens than the model embeds, and a chat template in a file of its own."""
    m = HfModel("gemma3_text")
    m.tokenizer["added_tokens"].append({"id": m.vocab, "content": "<image>", "special": True})
    m.write("image")
    with open("image/chat_template.jinja", "w", encoding="utf-8") as file:
        file.write("{{ messages[0].content }}")
    quern("convert", "image", "-o", "image.gguf", "--to", "gguf", "--quiet")
    with Loaded("image.gguf") as l:
        assert l.model.n_vocab() == m.vocab
        assert l.model.metadata["tokenizer.chat_template"] == "{{ messages[0].content }}"
    with open("image/tokenizer_config.json", "w", encoding="utf-8") as file:
        json.dump({"add_bos_token": True, "add_eos_token": True}, file)
    quern("convert", "image", "-o", "eos.gguf", "--to", "gguf", "--quiet")
    with Loaded("eos.gguf") as l:
        ids = l.model.tokenize(b"a", add_bos=True)
        assert ids[0] == m.bos and ids[-1] == 1, ids


def main():
    needs_program()
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        for kind in ARCHITECTURES:
            check_architecture(kind)
        check_k_quants()
        check_rotations()
        check_tokenizer_files()
    print("llama.cpp agrees")


if __name__ == "__main__":
    main()
