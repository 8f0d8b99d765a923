#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders and GGUF files that quern makes of small random models, loaded by transformers on the
CPU: the logits are those of the model in numpy with the values that the folder holds. Folders of
compressed-tensors and bitsandbytes need these packages, too; of GPTQ and AWQ, which transformers
runs with gptqmodel alone, the configurations are read. Environment: QUERN_LIBRARY. Exit status 77:
a package is missing."""
import json
import os
import sys
import tempfile

os.environ["TQDM_DISABLE"] = "1"
try:
    import numpy as np
    import torch
    import transformers
    from hf_models import ARCHITECTURES, HfModel, distance
except ImportError as missing:
    print(f"skipped: exports are not loaded by transformers: {missing.name} is not installed "
          "(make judges)")
    sys.exit(77)

from quern_checkpoint import Checkpoint, needs_program, quern

TOKENS = list(range(5, 45))
# Values in 32 bits, and in 16; of another format they are 0.05 and more away, as is asserted.
EXACT, ROUNDED = 1e-5, 0.03
WAYS = (  # target, format, package, type that it computes in
    ("ct", "int4:g32:f16", "compressed_tensors", "float32"),
    ("ct", "int2:g32:f16", "compressed_tensors", "float32"),
    ("ct", "int8:pc:f16", "compressed_tensors", "float32"),
    ("ct:int-quantized", "int8:pc:f16", "compressed_tensors", "float32"),
    ("ct", "fp8:pc:f16", "compressed_tensors", "float32"),
    ("ct", "mxfp4", "compressed_tensors", "bfloat16"),
    ("ct", "nvfp4", "compressed_tensors", "bfloat16"),
    ("bnb", "nf4:g64", "bitsandbytes", "float32"),
    ("bnb", "int8:pc", "bitsandbytes", "float32"))


def logits(folder, dtype="float32", **more):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), **more).eval()
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].double().numpy()


def near(mine, want, bound, what):
    far = distance(mine, want)
    if not far < bound:
        sys.exit(f"{what}: the logits of transformers are {far:.2g} away, more than {bound}")


def check_floats():
    """The judge of the judge: what numpy computes; and GGUF files as far as it reads them."""
    for kind in ARCHITECTURES:
        m = HfModel(kind)
        m.write(kind)
        near(logits(kind), m.logits(TOKENS), EXACT, kind)
        if kind in ("llama", "mistral", "qwen2"):
            quern("convert", kind, "-o", f"{kind}.gguf", "--to", "gguf", "--quiet")
            near(logits(".", gguf_file=f"{kind}.gguf"), m.logits(TOKENS), EXACT, f"{kind}.gguf")
    for kind, scaling in (
            ("llama", {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                       "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
            ("qwen2", {"rope_type": "linear", "factor": 4.0})):
        m = HfModel(kind, scaling=scaling)
        m.write("scaled")
        near(logits("scaled"), m.logits(TOKENS), EXACT, f"{kind}, {scaling}")


def check_quantized():
    for kind in ("llama", "qwen2", "gemma3_text"):
        m = HfModel(kind)
        m.write(kind)
        for to, form, package, dtype in WAYS:
            try:
                __import__(package)
            except ImportError as missing:
                print(f"skipped: folders of {package}: {missing}")
                continue
            name = f"{kind}-{to}-{form}".replace(":", "_")
            quern("quantize", kind, "-o", name, "--to", to, "--format", form, "--quiet")
            with Checkpoint(name) as c:
                held = {n: c.values(n)[0] for n in c.names() if c.module(n).importer != b""}
            assert len(held) == 7 * m.layers, held.keys()
            want = m.logits(TOKENS, held)
            # bitsandbytes computes in 16 bits, LLM.int8 with activations of 8.
            bound = EXACT if dtype == "float32" and to != "bnb" else ROUNDED
            bound = 0.08 if (to, form) == ("bnb", "int8:pc") else bound
            near(logits(name, dtype), want, bound, name)
            assert form.startswith("int8") or distance(m.logits(TOKENS), want) > 0.05, name


def check_round_trip():
    """A GGUF file as a folder: transformers reads the config.json that is made of its metadata."""
    for kind, scaling in (("llama", None), ("qwen3", None), ("gemma2", None),
                          ("qwen2", {"rope_type": "linear", "factor": 4.0})):
        try:
            import compressed_tensors  # noqa: F401
        except ImportError:
            return
        m = HfModel(kind, scaling=scaling)
        m.write(f"{kind}-from")
        quern("quantize", f"{kind}-from", "-o", f"{kind}-from.gguf", "--to", "gguf:q8_0", "--quiet")
        quern("convert", f"{kind}-from.gguf", "-o", f"{kind}-back", "--to", "ct", "--quiet")
        with Checkpoint(f"{kind}-back") as c:
            held = {n: c.values(n)[0] for n in c.names() if "norm" not in n and "bias" not in n}
        near(logits(f"{kind}-back"), m.logits(TOKENS, held), EXACT, f"{kind} from GGUF")


def check_configurations():
    m = HfModel("llama")
    m.write("plain")
    for to, form, want in (
            ("awq", "int4:g32:zp:f16", {"bits": 4, "group_size": 32, "zero_point": True}),
            ("gptq", "int4:g32:f16", {"bits": 4, "group_size": 32, "desc_act": False, "sym": True,
                                      "checkpoint_format": "gptq"}),
            ("gptq_v2", "int4:g64:zp:f16", {"bits": 4, "group_size": 64, "sym": False,
                                            "checkpoint_format": "gptq_v2"}),
            ("gptq_v2", "int8:g32:f16", {"bits": 8, "group_size": 32, "sym": True})):
        name = f"{to}-{form}".replace(":", "_")
        quern("quantize", "plain", "-o", name, "--to", to, "--format", form, "--quiet")
        read = transformers.AutoConfig.from_pretrained(name).quantization_config
        made = transformers.quantizers.AutoQuantizationConfig.from_dict(dict(read))
        for key, value in want.items():
            found = getattr(made, key, getattr(made, {"checkpoint_format": "format"}.get(key, key),
                                               None))
            assert found == value, f"{name}: {key} is {found!r}"
        with open(f"{name}/config.json", encoding="utf-8") as file:
            text = file.read()
        # Floats of the source stay floats, which classes that look at types ask for.
        assert json.loads(text)["rope_theta"] == 500000 and "500000.0" in text, text


def main():
    needs_program()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as root:
        os.chdir(root)
        for test in (check_floats, check_configurations, check_quantized, check_round_trip):
            test()
    print("transformers agrees")


if __name__ == "__main__":
    main()
