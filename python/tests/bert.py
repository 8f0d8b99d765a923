# SPDX-License-Identifier: Apache-2.0
"""Sentence encoders (BERT, the mean of the last states, of length 1) of tensors with the names of
Hugging Face's files: as an ONNX model, as a torch module, and in numpy for both to be judged by."""
import numpy as np

EPS = 1e-12
LAYER = "encoder.layer.{}."
DENSE = ("attention.self.query", "attention.self.key", "attention.self.value",
         "attention.output.dense", "intermediate.dense", "output.dense")
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")


def random_tensors(rng, layers=2, hidden=64, inner=160, vocabulary=97, positions=40):
    """What a small encoder may have: outputs of a layer are about as large as its inputs."""
    made = {}

    def put(name, *shape, scale):
        made[name] = (rng.normal(size=shape) * scale).astype(np.float32)

    put("embeddings.word_embeddings.weight", vocabulary, hidden, scale=1)
    put("embeddings.position_embeddings.weight", positions, hidden, scale=0.3)
    put("embeddings.token_type_embeddings.weight", 2, hidden, scale=0.3)
    norms = ["embeddings.LayerNorm"]
    for i in range(layers):
        for name in DENSE:
            n = inner if name == "intermediate.dense" else hidden
            k = inner if name == "output.dense" else hidden
            put(f"{LAYER.format(i)}{name}.weight", n, k, scale=k ** -0.5)
            put(f"{LAYER.format(i)}{name}.bias", n, scale=0.1)
        norms += [LAYER.format(i) + name for name in NORMS]
    for name in norms:
        put(f"{name}.weight", hidden, scale=0.1)
        made[f"{name}.weight"] += 1
        put(f"{name}.bias", hidden, scale=0.1)
    return made


def n_layers(tensors):
    return sum(name.endswith("intermediate.dense.weight") for name in tensors)


def embed(tensors, ids, mask, heads):
    """[sentences, tokens] twice -> [sentences, hidden]."""
    t = {name: value.astype(np.float64) for name, value in tensors.items()}

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS)
        return x * t[name + ".weight"] + t[name + ".bias"]

    def dense(x, name):
        return x @ t[name + ".weight"].T + t[name + ".bias"]

    def split(x):
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    x = norm(t["embeddings.word_embeddings.weight"][ids] +
             t["embeddings.position_embeddings.weight"][:ids.shape[1]] +
             t["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for i in range(n_layers(tensors)):
        at = LAYER.format(i)
        q, k, v = (split(dense(x, at + name)) for name in DENSE[:3])
        scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) - 1e4 * (1 - mask)[:, None, None]
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = scores / scores.sum(-1, keepdims=True) @ v
        x = norm(x + dense(mixed.swapaxes(1, 2).reshape(x.shape), at + DENSE[3]), at + NORMS[0])
        wide = dense(x, at + DENSE[4])
        wide = wide * 0.5 * (1 + erf(wide / np.sqrt(2)))
        x = norm(x + dense(wide, at + DENSE[5]), at + NORMS[1])
    mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.sqrt((mean * mean).sum(-1, keepdims=True))


def erf(x):
    """To 1e-7 (Abramowitz and Stegun, 7.1.26)."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t
            + 0.254829592) * t
    return np.sign(x) * (1 - poly * np.exp(-x * x))


def torch_model(tensors, heads):
    """Dense layers are torch.nn.Linear; attention is torch's own."""
    import torch
    functional = torch.nn.functional
    size = tensors["embeddings.word_embeddings.weight"].shape[1]

    class Norm(torch.nn.LayerNorm):
        def __init__(self):
            super().__init__(size, eps=EPS)

    class Block(torch.nn.Module):
        def __init__(self, at):
            super().__init__()
            for i, name in enumerate(DENSE):
                n, k = tensors[f"{at}{name}.weight"].shape
                setattr(self, f"dense{i}", torch.nn.Linear(k, n))
            self.norm0, self.norm1 = Norm(), Norm()

        def forward(self, x, mask):
            q, k, v = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2)
                       for layer in (self.dense0, self.dense1, self.dense2))
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = self.norm0(x + self.dense3(mixed.transpose(1, 2).flatten(2)))
            return self.norm1(x + self.dense5(functional.gelu(self.dense4(x))))

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for part in ("word", "position", "token_type"):
                n = tensors[f"embeddings.{part}_embeddings.weight"].shape[0]
                setattr(self, part, torch.nn.Embedding(n, size))
            self.norm = Norm()
            self.blocks = torch.nn.ModuleList(
                Block(LAYER.format(i)) for i in range(n_layers(tensors)))

        def forward(self, ids, mask):
            x = self.norm(self.word(ids) + self.position.weight[:ids.shape[1]]
                          + self.token_type.weight[0])
            bias = ((1 - mask) * -1e4).to(x.dtype)[:, None, None]
            for block in self.blocks:
                x = block(x, bias)
            weights = mask[..., None].to(x.dtype)
            return functional.normalize((x * weights).sum(1) / weights.sum(1), dim=-1)

    made = Encoder()
    made.load_state_dict({mine: torch.from_numpy(np.array(tensors[name]))
                          for mine, name in torch_names(tensors).items()})
    return made.eval()


def torch_names(tensors):
    """Name in the state_dict of torch_model() -> name of the tensor."""
    names = {"norm.": "embeddings.LayerNorm."}
    for part in ("word", "position", "token_type"):
        names[f"{part}."] = f"embeddings.{part}_embeddings."
    for i in range(n_layers(tensors)):
        parts = [f"dense{j}" for j in range(len(DENSE))] + ["norm0", "norm1"]
        for part, name in zip(parts, DENSE + NORMS):
            names[f"blocks.{i}.{part}."] = f"{LAYER.format(i)}{name}."
    return {mine + last: name + last for mine, name in names.items()
            for last in ("weight", "bias") if name + last in tensors}


def nbits(weight):
    """The inputs of a MatMulNBits of four bits: codes, scales, zero points."""
    n, k = weight.shape
    blocks = weight.n_groups
    codes = np.asarray(weight.codes).reshape(n, blocks, k // blocks)
    zeros = np.full((n, blocks), 8) + (0 if weight.zero is None else np.asarray(weight.zero))
    zeros = np.pad(zeros, ((0, 0), (0, blocks % 2))).astype(np.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4, np.array(weight.scale, np.float32),
            zeros[:, 0::2] | zeros[:, 1::2] << 4)


def onnx_model(tensors, heads, four_bits=None):
    """Inputs "ids" and "mask" of i64, output "y"; sentences and tokens are free. four_bits: name of
    a dense layer -> its quern.Weight of four bits, which becomes a MatMulNBits."""
    import onnx
    from onnx import helper, numpy_helper
    size = tensors["embeddings.word_embeddings.weight"].shape[1]
    nodes, constants = [], {}

    def add(op, inputs, **attributes):
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(name, value):
        constants[name] = np.asarray(value)
        return name

    def norm(x, name):
        return add("LayerNormalization",
                   [x, *(constant(f"{name}.{part}", tensors[f"{name}.{part}"])
                         for part in ("weight", "bias"))], epsilon=EPS, axis=-1)

    def dense(x, name):
        if four_bits is None:
            w = constant(name + ".weight", np.ascontiguousarray(tensors[name + ".weight"].T))
            y = add("MatMul", [x, w])
        else:
            n, k = four_bits[name].shape
            parts = [constant(f"{name}.{part}", value)
                     for part, value in zip(("codes", "scales", "zeros"), nbits(four_bits[name]))]
            y = add("MatMulNBits", [x, *parts], domain="com.microsoft", N=n, K=k, bits=4,
                    block_size=k // four_bits[name].n_groups, accuracy_level=4)
        return add("Add", [y, constant(name + ".bias", tensors[name + ".bias"])])

    constant("split", np.array([0, 0, heads, size // heads], np.int64))
    constant("joined", np.array([0, 0, size], np.int64))
    constant("one", np.array([1], np.int64))
    constant("zero", np.array([0], np.int64))
    constant("apart", np.array([1, 2], np.int64))
    constant("last", np.array([2], np.int64))
    tokens = add("Shape", ["ids"], start=1, end=2)
    places = add("Slice", [constant("places", tensors["embeddings.position_embeddings.weight"]
                                    + tensors["embeddings.token_type_embeddings.weight"][0]),
                           "zero", tokens])
    words = constant("words", tensors["embeddings.word_embeddings.weight"])
    x = norm(add("Add", [add("Gather", [words, "ids"]), places]), "embeddings.LayerNorm")
    weights = add("Cast", ["mask"], to=1)
    bias = add("Mul", [add("Sub", [constant("1", np.float32(1)), weights]),
                       constant("far", np.float32(-1e4))])
    bias = add("Unsqueeze", [bias, "apart"])
    for i in range(n_layers(tensors)):
        at = LAYER.format(i)
        q, k, v = (add("Transpose", [add("Reshape", [dense(x, at + name), "split"])],
                       perm=[0, 2, 3, 1] if j == 1 else [0, 2, 1, 3])
                   for j, name in enumerate(DENSE[:3]))
        q = add("Mul", [q, constant("root", np.float32((size // heads) ** -0.5))])
        scores = add("Softmax", [add("Add", [add("MatMul", [q, k]), bias])], axis=-1)
        mixed = add("Transpose", [add("MatMul", [scores, v])], perm=[0, 2, 1, 3])
        x = norm(add("Add", [x, dense(add("Reshape", [mixed, "joined"]), at + DENSE[3])]),
                 at + NORMS[0])
        wide = add("Gelu", [dense(x, at + DENSE[4])])
        x = norm(add("Add", [x, dense(wide, at + DENSE[5])]), at + NORMS[1])
    weights = add("Unsqueeze", [weights, "last"])
    mean = add("Div", [add("ReduceSum", [add("Mul", [x, weights]), "one"], keepdims=0),
                       add("ReduceSum", [weights, "one"], keepdims=0)])
    nodes.append(helper.make_node("LpNormalization", [mean], ["y"], axis=-1, p=2))
    kinds = onnx.TensorProto
    graph = helper.make_graph(
        nodes, "encoder",
        [helper.make_tensor_value_info(name, kinds.INT64, ["sentences", "tokens"])
         for name in ("ids", "mask")],
        [helper.make_tensor_value_info("y", kinds.FLOAT, ["sentences", size])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()])
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
