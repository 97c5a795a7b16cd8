"""Tiny models of whatever strangers have: one for each thing that the input may contain.

Nearly all hold a product that is rewritten beside the thing they are about, and share values with
it.  A model is written in ONNX's text form; ``w``, ``b`` and the like are weights by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper, parser

__all__ = ["MODELS", "Strange", "built", "without_shapes"]

RNG = np.random.default_rng(11)
X, Y = "float[n, 8] x", "float[n, 8] y"
HEAD = "h = MatMul(x, w)  s = Add(h, b)  r = Relu(s)"
"""What is rewritten; its three values are read by what comes behind."""


def _f32(*shape: int) -> npt.NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


WEIGHTS: Mapping[str, npt.NDArray[np.generic]] = MappingProxyType(
    {
        "w": _f32(8, 8), "b": _f32(8), "v": _f32(8, 8), "table": _f32(20, 8),
        "filters": _f32(8, 3, 3, 3), "gamma": _f32(8), "beta": _f32(8), "mean": _f32(8),
        "var": np.abs(_f32(8)), "half": np.float32([0.5]).reshape(()), "one": np.float32(1)[()],
        "yes": np.array(True), "no": np.array(False), "three": np.array(3), "zero": np.array(0),
        "zeros": np.array([0]), "ones": np.array([1]), "twos": np.array([2]),
        "rows": np.array([-1, 8]), "none": np.zeros((0, 8), np.float32),
        "words": np.array(["a", "b"], object), "scale": np.float32(0.05)[()],
        "coarse": np.float32(0.0437193)[()],
        "scales": (np.abs(_f32(8)) / 50).astype(np.float32), "point": np.array(3, np.int8),
        "points": np.zeros(8, np.int8), "upoint": np.array(120, np.uint8),
        "wq": RNG.integers(-99, 99, (8, 8)).astype(np.int8),
        "wu": RNG.integers(0, 255, (8, 8)).astype(np.uint8),
        "fq": RNG.integers(-99, 99, (8, 3, 3, 3)).astype(np.int8),
        "w16": _f32(8, 8).astype(np.float16), "b16": _f32(8).astype(np.float16),
        "wb": _f32(8, 8).astype(ml_dtypes.bfloat16), "wd": _f32(8, 8).astype(np.float64),
        "w8": _f32(8, 8).astype(ml_dtypes.float8_e4m3fn),
        "w4": RNG.integers(-8, 7, (8, 8)).astype(ml_dtypes.int4),
        "w4u": RNG.integers(0, 15, (8, 8)).astype(ml_dtypes.uint4),
        "blocks": np.abs(_f32(2, 8)), "nibbles": RNG.integers(0, 255, (8, 1, 16), np.uint8),
        "wide": _f32(32, 8), "spread": np.abs(_f32(8)), "wi": _f32(1, 16, 8), "wr": _f32(1, 16, 4),
        "sizes": np.array([1, 8, 12, 12]), "up": _f32(8, 16, 4), "wide_up": _f32(8, 3, 5, 5),
        "wi8": RNG.integers(-99, 99, (1, 8, 16)).astype(np.int8),
        "wr8": RNG.integers(-99, 99, (1, 4, 16)).astype(np.int8),
        "scale1": np.float32([0.01]),
        "point1": np.zeros(1, np.int8),
        "three_times": np.array([3, 1, 2]),
        "bi": RNG.integers(-99, 99, 8).astype(np.int32),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Strange:
    """A model and what must become of it.

    ``kept`` are operators that stay, as often as they were; ``status`` is what verification says:
    ``skipped`` where nothing is rewritten, ``refused`` where ONNX Runtime does not load it.
    ``alike`` is False where two runs differ by chance, there is nothing to run, or ONNX Runtime
    runs only the result.
    """

    graph: str
    kept: str = ""
    status: str = "passed"
    alike: bool = True
    opset: int = 17
    ir: int = 10
    more: str = ""
    """Further imports of operator sets."""
    functions: str = ""
    edit: Callable[[ModelProto], object] = lambda model: None
    """What the text form cannot say."""
    falsely: bool = False
    """The shapes of its outputs are declared falsely: the result declares their true ranks."""


def _on(inputs: str, outputs: str, body: str) -> str:
    return f"g ({inputs}) => ({outputs}) {{ {body} }}"


def _xy(body: str) -> str:
    return _on(X, Y, body)


FEW = helper.make_sparse_tensor(
    numpy_helper.from_array(np.float32([2, -3, 5]), "few"),
    numpy_helper.from_array(np.array([0, 9, 33]), "few_places"), [8, 8],
)  # fmt: skip


def _sparse_constant(model: ModelProto) -> None:
    model.graph.node.insert(0, helper.make_node("Constant", [], ["few"], sparse_value=FEW))


def without_shapes(*ends: Iterable[ValueInfoProto]) -> None:
    for value in (v for side in ends for v in side):
        value.type.tensor_type.ClearField("shape")


def _says_much(model: ModelProto) -> None:
    """Everything a model may say about itself."""
    model.producer_name, model.producer_version = "their exporter", "1.2.3"
    model.domain, model.model_version, model.doc_string = "org.them", 42, "A model.\nTwo lines."
    model.metadata_props.add(key="labels", value='{"0": "cat"}')
    model.metadata_props.add(key="", value="")
    model.opset_import.append(helper.make_opsetid("org.them.unused", 3))
    graph = model.graph
    graph.name, graph.doc_string = "their graph / 1", "A graph."
    for value in (*graph.input, *graph.output):
        value.doc_string = f"what {value.name} is"
        value.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
        value.type.denotation = "TENSOR"
        if hasattr(value, "metadata_props"):
            value.metadata_props.add(key="unit", value="m/s")
    for node in graph.node:
        node.doc_string = f"doc of {node.op_type}"
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="File x.py, line 3")
    graph.quantization_annotation.add(tensor_name="x").quant_parameter_tensor_names.add(
        key="SCALE_TENSOR", value="scale"
    )
    graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "scale"))


def _overridable(model: ModelProto) -> None:
    """Every weight is an input too."""
    for held in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(held.name, held.data_type, list(held.dims))
        )


def _named(names: Sequence[str]) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        for node, name in zip(model.graph.node, names, strict=False):
            node.name = name

    return edit


def _renamed(model: ModelProto) -> None:
    """Values called as exporters and people call them, and as this tool calls its own."""
    new = {
        "x": "input:0", "h": "/block/0/MatMul_output_0", "s": "eingabe größe 数据", "y": "output",
        "w": "tracea.w", "b": "FusedGemm_0", "r": "h 1",
    }  # fmt: skip
    graph = model.graph
    for held in (*graph.input, *graph.output, *graph.initializer):
        held.name = new.get(held.name, held.name)
    for node in graph.node:
        node.input[:] = [new.get(v, v) for v in node.input]
        node.output[:] = [new.get(v, v) for v in node.output]


MS = ', "com.microsoft": 1'
ML = ', "ai.onnx.ml": 3'


def built(name: str) -> ModelProto:
    """The model of a name in :data:`MODELS`, with the weights it reads."""
    spec = MODELS[name]
    head = f'<ir_version: {spec.ir}, opset_import: ["": {spec.opset}{spec.more}]>\n'
    model = parser.parse_model(head + spec.graph + "\n" + spec.functions)
    given = {v.name for v in model.graph.input}
    for weight, array in WEIGHTS.items():
        if re.search(rf"\b{weight}\b", spec.graph) and weight not in given:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), weight))
    spec.edit(model)
    return model


CONTROL = {
    "if, reading what is fused": Strange(
        _on(f"{X}, bool c", Y, HEAD + """ y = If(c) <
            then_branch = a () => (float[n, 8] t) { t = Mul(h, s) },
            else_branch = e () => (float[n, 8] u) { q = MatMul(r, w)  u = Add(q, b) }> """),
        "If",
    ),
    "if, shadowing": Strange(
        _on(f"{X}, bool c", Y, HEAD + """ y = If(c) <
            then_branch = a () => (float[n, 8] t) { one_ = Neg(s)  t = Mul(one_, r) },
            else_branch = e () => (float[n, 8] t) { one_ = Abs(x)  t = Add(one_, r) }> """),
        "If",
    ),
    "if of constants": Strange(
        _xy(HEAD + """ y = If(yes) <
            then_branch = a () => (float[n, 8] t) { t = Identity(r) },
            else_branch = e () => (float[n, 8] u) { u = Neg(s) }> """),
    ),
    "loop": Strange(
        _on(X, f"{Y}, float[k, n, 8] all", HEAD + """ y, all = Loop(three, yes, x) <
            body = l (int64 i, bool k, float[n, 8] v) => (bool k2, float[n, 8] v2, float[n, 8] o) {
                k2 = Identity(k)  p = MatMul(v, w)  o = Add(p, r)  v2 = Tanh(o) }> """),
    ),
    "loop, shadowing": Strange(
        _xy(HEAD + """ y = Loop(three, , r) <
            body = l (int64 i, bool k, float[n, 8] s) => (bool k2, float[n, 8] s2) {
                k2 = Identity(k)  s2 = Mul(s, half) }> """),
    ),
    "loop that never runs": Strange(
        _xy(HEAD + """ y = Loop(zero, yes, r) <
            body = l (int64 i, bool k, float[n, 8] v) => (bool k2, float[n, 8] v2) {
                k2 = Identity(k)  v2 = Add(v, s) }> """),
        "Loop",
    ),
    "if in a loop": Strange(
        _xy(HEAD + """ count = Shape <start = 0, end = 1> (x)  y = Loop(count, yes, x) <
            body = l (int64 i, bool k, float[n, 8] v) => (bool k2, float[n, 8] v2) {
                k2 = Identity(k)  c = Equal(i, zero)
                v2 = If(c) <then_branch = a () => (float[n, 8] t) { t = Mul(v, r) },
                            else_branch = e () => (float[n, 8] t) { t = Add(v, s) }> }> """),
        "Loop",
    ),
    "scan": Strange(
        _on(X, "float[8] z, float[n, 8] y", HEAD + """ z, y = Scan <num_scan_inputs = 1,
            body = l (float[8] a, float[8] e) => (float[8] a2, float[8] o) {
                a2 = Add(a, e)  m = Mul(a2, gamma)  o = Add(m, b) }> (beta, r) """),
        "Scan",
    ),
    "scan of opset 8": Strange(
        _on("float[2, n, 8] x", "float[2, 8] z, float[2, n, 8] y", HEAD + """
            z0 = ReduceMax <axes = [1], keepdims = 0> (x)
            z, y = Scan <num_scan_inputs = 1,
            body = l (float[8] a, float[8] e) => (float[8] a2, float[8] o) {
                a2 = Add(a, e)  o = Identity(a2) }> ( , z0, r) """),
        "Scan", opset=8,
    ),
}  # fmt: skip

CONTAINERS = {
    "sequence inside": Strange(
        _xy(HEAD + """ q = SequenceConstruct(r, x)  i = SequenceInsert(q, s)
            e = SequenceErase(i, zero)  a = SequenceAt(e, zero)
            t = ConcatFromSequence <axis = 1> (e)  u = ReduceSum <keepdims = 1> (t, ones)
            y = Add(a, u) """),
        "SequenceConstruct SequenceInsert SequenceErase SequenceAt ConcatFromSequence",
    ),
    "sequence in and out": Strange(
        _on("seq(float[n, 8]) q", f"{Y}, seq(float[n, 8]) o", """ x = SequenceAt(q, zero)
            """ + HEAD + """ y = Tanh(r)  o = SequenceInsert(q, y) """),
        "SequenceAt SequenceInsert",
    ),
    "split to sequence": Strange(
        _xy(HEAD + """ q = SplitToSequence <axis = 1> (r, three)  l = SequenceLength(q)
            a = SequenceAt(q, zero)  m = ReduceSum <keepdims = 1> (a, ones)
            lf = Cast <to = 1> (l)  k = Mul(m, lf)  y = Add(k, r) """),
        "SplitToSequence SequenceLength SequenceAt",
    ),
    "optional in": Strange(
        _on("optional(float[n, 8]) o", Y, "x = OptionalGetElement(o)  " + HEAD + " y = Neg(r)"),
        "OptionalGetElement", opset=18,
    ),
    "optional inside": Strange(
        _on(X, f"{Y}, bool has", HEAD + """ o = Optional(r)  has = OptionalHasElement(o)
            e = OptionalGetElement(o)  y = Mul(e, s) """),
        "Optional OptionalHasElement OptionalGetElement",
    ),
    "strings through": Strange(
        _on(f"{X}, string[m] t", f"{Y}, string[m] u", HEAD + " y = Neg(r)  u = Identity(t)"),
        "Identity",
    ),
    "strings to ids": Strange(
        _on("string[m] t", "float[m, 8] y", """
            i = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [3, 7],
                default_int64 = 1> (t)
            x = Gather(table, i) """ + HEAD + " y = Neg(r)"),
        "LabelEncoder", more=ML,
    ),
    "strings normalised": Strange(
        _on(f"{X}, string[m] t", f"{Y}, string[k] u, bool[m] e", HEAD + """ y = Neg(r)
            u = StringNormalizer <stopwords = ["a"], is_case_sensitive = 1> (t)
            k = Gather(words, zero)  e = Equal(t, k) """),
        "StringNormalizer", opset=19,
    ),
}  # fmt: skip

STORED = {
    "a sparse initializer": Strange(
        _xy(HEAD + " y = MatMul(r, few)"), edit=lambda m: m.graph.sparse_initializer.append(FEW),
    ),
    "a sparse constant": Strange(_xy(HEAD + " y = MatMul(r, few)"), edit=_sparse_constant),
    "a function": Strange(
        _xy(HEAD + " y = my.Block(r, v)"), more=', "my": 1', functions="""
        <domain: "my", opset_import: ["": 17, "my": 1]> Block (a, m) => (o) {
            p = MatMul(a, m)  q = my.Inner <alpha = 0.3> (p)  o = Add(q, a) }
        <domain: "my", opset_import: ["": 17]> Inner <alpha> (a) => (o) {
            o = LeakyRelu <alpha: float = @alpha> (a) }""",
    ),
    "two functions of one name": Strange(
        _xy(HEAD + " k = my.Block(r)  y = other.Block(k)"), more=', "my": 1, "other": 2',
        functions="""
        <domain: "my", opset_import: ["": 17]> Block (a) => (o) { o = Tanh(a) }
        <domain: "other", opset_import: ["": 17]> Block (a) => (o) { o = Sigmoid(a) }""",
    ),
    "the standard domain by its long name": Strange(
        _xy("h = ai.onnx.MatMul(x, w)  s = ai.onnx.Add(h, b)  y = ai.onnx.Relu(s)"),
        edit=lambda m: m.opset_import[0].MergeFrom(helper.make_opsetid("ai.onnx", 17)),
    ),
    "bf16 weights": Strange(_xy("c = Cast <to = 1> (wb)  h = MatMul(x, c)  y = Add(h, b)")),
    "fp8 weights": Strange(
        _xy("c = DequantizeLinear(w8, scale)  h = MatMul(x, c)  y = Add(h, b)"), opset=21,
    ),
    "int4 weights": Strange(
        _xy("c = DequantizeLinear <axis = 1> (w4, scales)  h = MatMul(x, c)  y = Add(h, b)"),
        opset=21,
    ),
    "uint4 weights in blocks": Strange(
        _xy("c = DequantizeLinear <axis = 0, block_size = 4> (w4u, blocks)  h = MatMul(x, c)  "
            "y = Add(h, b)"), opset=21,
    ),
    "MatMulNBits": Strange(
        _on("float[n, 32] x", Y, """h = com.microsoft.MatMulNBits <K = 32, N = 8, bits = 4,
            block_size = 32> (x, nibbles, spread)  t = MatMul(x, wide)  s = Add(h, t)
            y = Relu(s)"""),
        more=MS,
    ),
    "fp16": Strange(
        _on("float16[n, 8] x", "float16[n, 8] y",
            "h = MatMul(x, w16)  s = Add(h, b16)  t = Tanh(s)  y = Mul(t, s)"),
    ),
    "fp16 between casts": Strange(
        _xy("a = Cast <to = 10> (x)  h = MatMul(a, w16)  s = Add(h, b16)  t = Sigmoid(s)  "
            "u = Mul(t, s)  c = Cast <to = 1> (u)  p = MatMul(c, w)  y = Add(p, b)"),
    ),
    "double": Strange(
        _on("double[n, 8] x", "double[n, 8] y", "h = MatMul(x, wd)  t = Tanh(h)  y = Neg(t)"),
        "MatMul Tanh Neg", "skipped",
    ),
    "bf16": Strange(
        _on("bfloat16[n, 8] x", "bfloat16[n, 8] y", "h = MatMul(x, wb)  y = Relu(h)"),
        alike=False,
    ),
}  # fmt: skip

QUANTISED = {
    "qdq": Strange(
        _xy("""xq = QuantizeLinear(x, scale, point)  xd = DequantizeLinear(xq, scale, point)
            wd_ = DequantizeLinear <axis = 1> (wq, scales, points)  h = MatMul(xd, wd_)
            hq = QuantizeLinear(h, scale, point)  hd = DequantizeLinear(hq, scale, point)
            t = MatMul(hd, w)  y = Add(t, b)"""),
    ),
    "qdq, convolution": Strange(
        _on("float[n, 3, 9, 9] x", "float[n, 8, 9, 9] y", """
            xq = QuantizeLinear(x, scale, upoint)  xd = DequantizeLinear(xq, scale, upoint)
            f = DequantizeLinear <axis = 0> (fq, scales, points)
            c = Conv <pads = [1, 1, 1, 1]> (xd, f)  k = Conv <pads = [1, 1, 1, 1]> (x, filters)
            s = Add(c, k)  y = Relu(s)"""),
    ),
    "qlinear": Strange(
        _xy("""xq = QuantizeLinear(x, scale, upoint)
            h = QLinearMatMul(xq, scale, upoint, wu, scale, upoint, scale, upoint)
            d = DequantizeLinear(h, scale, upoint)  t = MatMul(d, w)  y = Add(t, b)"""),
    ),
    "qlinear, convolution": Strange(
        _on("float[n, 3, 9, 9] x", "float[n, 8, 9, 9] y", """
            xq = QuantizeLinear(x, scale, upoint)
            c = QLinearConv <pads = [1, 1, 1, 1]> (xq, scale, upoint, fq, scale, point, coarse,
                upoint, bi)
            d = DequantizeLinear(c, coarse, upoint)  k = Conv <pads = [1, 1, 1, 1]> (x, filters)
            s = Add(d, k)  y = Relu(s)"""),
    ),
    "integers by dynamic scales": Strange(
        _xy("""q, qs, qz = DynamicQuantizeLinear(x)  h = MatMulInteger(q, wu, qz, upoint)
            f = Cast <to = 1> (h)  g = Mul(f, qs)  t = MatMul(g, w)  y = Add(t, b)"""),
    ),
    "an LSTM in integers, which answers otherwise on more threads": Strange(
        _on(
            "float[n, 5, 8] x",
            "float[n, 1, 5, 4] y",
            HEAD
            + """ z, last = com.microsoft.DynamicQuantizeLSTM <hidden_size = 4> (r, wi8, wr8, , , ,
            , , scale1, point1, scale1, point1)  y = Tanh(z)""",
        ),
        "DynamicQuantizeLSTM MatMul",
        "skipped",
        more=MS,
    ),
    "contributed quantised": Strange(
        _xy(HEAD + """ z = com.microsoft.DynamicQuantizeMatMul(r, wu, scale, upoint, b)
            t = MatMul(z, v)  y = Tanh(t)"""),
        more=MS,
    ),
}  # fmt: skip

CONTRIBUTED = {
    "contributed": Strange(
        _xy(HEAD + """ g = com.microsoft.BiasGelu(h, b)
            k = com.microsoft.SkipLayerNormalization <epsilon = 1e-5> (g, r, gamma, beta)
            q = com.microsoft.QuickGelu <alpha = 1.7> (k)  f = com.microsoft.FastGelu(q, b)
            y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (f, v)"""),
        more=MS,
    ),
    "contributed, nobody knows it here": Strange(
        _xy(HEAD + " p = com.microsoft.NGramRepeatBlock <ngram_size = 2> (i, r)  y = Neg(p)")
        .replace("float[n, 8] x)", "float[n, 8] x, int64[n, 5] i)"),
        "NGramRepeatBlock", more=MS,
    ),
    "an operator of a library that is not here": Strange(
        _xy(HEAD + " y = their.Strange <a = 1> (r)"), "", "refused",
        more=', "their": 1',
    ),
    "trees": Strange(
        _on(X, "int64[n] label, seq(map(int64, float)) p", HEAD + """
            label, q = ai.onnx.ml.LinearClassifier <classlabels_ints = [0, 1, 2],
                coefficients = [1.0, -1.0, 0.5, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0, -1.0, 0.5, 0.1,
                0.2, 0.3, 0.4, 0.5, 0.4, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
                intercepts = [0.1, 0.2, 0.3], post_transform = "SOFTMAX"> (r)
            p = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2]> (q) """),
        "LinearClassifier ZipMap MatMul Relu", "skipped", more=ML,
    ),
}  # fmt: skip

TRAINING = {
    "dropout that trains": Strange(
        _xy(HEAD + " d, m = Dropout <seed = 5> (r, half, yes)  y = Mul(d, s)"),
        "Dropout", alike=False,
    ),
    "dropout with its mask": Strange(
        _on(X, f"{Y}, bool[n, 8] m", HEAD + " d, m = Dropout(r, half, no)  y = Mul(d, s)"),
    ),
    "mean minus values, normalized": Strange(
        _xy("""h = MatMul(x, w)  m = ReduceMean <axes = [1]> (h)  d = Sub(m, h)
            s = Mul(d, d)  t = ReduceMean <axes = [1]> (s)  e = Add(t, coarse)  r = Sqrt(e)
            z = Div(d, r)  a = Mul(z, gamma)  y = Add(a, beta)"""),
    ),
    "batch norm that trains": Strange(
        _on(X, f"{Y}, float[8] m, float[8] v2", HEAD + """
            y, m, v2 = BatchNormalization <training_mode = 1> (r, gamma, beta, mean, var) """),
        "BatchNormalization",
    ),
    "batch norm with unread statistics": Strange(
        _xy(HEAD + """
            y, m, v2 = BatchNormalization <training_mode = 1> (r, gamma, beta, mean, var) """),
        "BatchNormalization", opset=15,
    ),
    "a gradient": Strange(
        _xy(HEAD + """ y = ai.onnx.preview.training.Gradient <xs = ["x"], y = "r"> (r) """),
        "", "refused", more=', "ai.onnx.preview.training": 1',
    ),
}  # fmt: skip

ENDS = {
    "an input is an output": Strange(
        _on(X, f"float[n, 8] x, {Y}", HEAD + " y = Neg(r)"),
    ),
    "a constant is an output": Strange(
        _on(X, f"{Y}, float[8] b, float c", HEAD + """ y = Neg(r)
            c = Constant <value_float = 2.5> ()"""),
    ),
    "everything is an output": Strange(
        _on(X, "float[n, 8] s, float[n, 8] h, float[n, 8] y, float[n, 8] r", HEAD + " y = Neg(r)"),
    ),
    "an input nobody reads": Strange(
        _on(f"int64[q, 2] unused, {X}, string[p] idle", Y, HEAD + " y = Neg(r)"),
    ),
    "only passing through": Strange(
        _on(X, Y, "y = Identity(x)"), "Identity", "skipped",
    ),
    "absent operands": Strange(
        _on("float[1, 8, 6, 6] x", "float[1, 8, 12, 12] y", """c = Clip(x, , one)
            t = Transpose <perm = [0, 2, 3, 1]> (c)  h = MatMul(t, w)  s = Add(h, b)
            u = Transpose <perm = [0, 3, 1, 2]> (s)  y = Resize(u, , , sizes)"""),
    ),
    "absent results": Strange(
        _on("float[n, 3, 8] x", "float[1, 3, 4] last", HEAD + """
            , last = LSTM <hidden_size = 4> (r, wi, wr)"""),
    ),
    "nothing in it": Strange(
        _on("float[0, 8] x", "float[0, 8] y", HEAD + " y = Neg(r)"),
    ),
    "an empty constant": Strange(
        _xy("c = Concat <axis = 0> (x, none)  h = MatMul(c, w)  s = Add(h, b)  y = Relu(s)"),
    ),
    "scalars": Strange(
        _on("float x", "float y, float z", """a = Mul(x, half)  t = Tanh(a)  y = Add(t, one)
            z = ReduceMax(y)"""),
    ),
    "repeated before there was Expand": Strange(
        _on("float[5, seq, 7] x", "float lowest, float[15, seq, 14] y", """
            lowest = ReduceMin <axes = [0, 1, 2], keepdims = 0> (x)  y = Tile(x, three_times)"""),
        opset=7, ir=8,
    ),
    "vectors": Strange(
        _on("float[8] x", "float[8] y, float z", HEAD + " y = Neg(r)  z = MatMul(y, b)"),
    ),
    "no shapes at all": Strange(
        _on("float[n, 8] x", "float[n, 8] y", HEAD + " y = Reshape(r, rows)"),
        "MatMul Relu Reshape", "skipped", alike=False,
        edit=lambda m: without_shapes(m.graph.input, m.graph.output),
    ),
    "sizes that depend on values": Strange(
        _on(X, "int64[2, k] i, float[k] q", HEAD + """ i = NonZero(r)
            t = Transpose(i)  q = GatherND(s, t)"""),
        "NonZero",
    ),
    "a window larger than the picture": Strange(
        _on("float[2, 5, rows, 3] x, float[2, 5, rows, 7] z",
            "float[2, 5, k, 1] y, float[2, 5, m, 2] t", """
            y = AveragePool <kernel_shape = [3, 3], pads = [0, 0, 1, 0], strides = [1, 3]> (x)
            t = AveragePool <kernel_shape = [3, 3], pads = [0, 0, 1, 0], strides = [2, 3]> (z)"""),
    ),
    "eight dims": Strange(
        _on("float[1, 2, 1, 2, 1, 2, 2, 8] x", "float[1, 2, 1, 2, 1, 2, 2, 8] y",
            HEAD + " y = Neg(r)"),
    ),
    "integers and booleans": Strange(
        _on("int32[n, 8] i, uint8[n, 8] u, bool[n, 8] c", f"{Y}, bool[n, 8] d, int64[n] a", """
            x = Cast <to = 1> (i)  k = Cast <to = 1> (u)  """ + HEAD + """ t = Add(r, k)
            y = Where(c, t, x)  d = Greater(y, x)  a = ArgMax <axis = 1, keepdims = 0> (s)"""),
    ),
}  # fmt: skip

RANDOM = {
    "random values": Strange(
        _xy(HEAD + """ a = RandomNormalLike <seed = 3.0> (r)  c = RandomNormalLike <seed = 3.0> (r)
            e = RandomUniformLike(r)  k = Sub(a, c)  q = Mul(k, e)  y = Add(q, s) """),
        "RandomNormalLike RandomUniformLike", alike=False,
    ),
    "random constants": Strange(
        _xy(HEAD + """ a = RandomNormal <shape = [8], seed = 1.0> ()
            c = RandomUniform <shape = [8], seed = 1.0> ()  k = Sub(a, c)  y = Add(r, k) """),
        "RandomNormal RandomUniform", alike=False,
    ),
    "drawn from a distribution": Strange(
        _on(X, f"{Y}, int32[n, 2] i", HEAD + """ p = Sigmoid(s)  d = Bernoulli(p)
            i = Multinomial <sample_size = 2> (s)  y = Mul(d, r) """),
        "Bernoulli Multinomial", alike=False,
    ),
    "random values nobody reads": Strange(
        _xy("a = RandomNormal <shape = [8]> ()  " + HEAD + " y = Neg(r)"),
    ),
}  # fmt: skip

SAID = {
    "an output of another rank than declared": Strange(
        _on(
            "float[n, 8] x",
            Y,
            HEAD
            + """
            d = Shape(r)  k = Gather(d, zeros)  t = Mul(k, ones)  f = Concat <axis = 0> (t, rows)
            z = Reshape(r, f)  y = Tanh(z) """,
        ),
        falsely=True,
    ),
    "everything a model may say": Strange(_xy(HEAD + " y = Neg(r)"), edit=_says_much),
    "training info": Strange(
        _xy(HEAD + " y = Neg(r)"),
        edit=lambda m: setattr(m.training_info.add().algorithm, "name", "step"),
    ),
    "one name for all nodes": Strange(
        _xy(HEAD + " y = Neg(r)"),
        "",
        "refused",
        edit=_named(["n"] * 4),
    ),
    "some nodes without a name": Strange(
        _xy(HEAD + " y = Neg(r)"), edit=_named(["", "n", "", "m"])
    ),
    "names of all kinds": Strange(_xy(HEAD + " y = Neg(r)"), edit=_renamed),
    "overridable initializers": Strange(_xy(HEAD + " y = MatMul(r, v)"), edit=_overridable),
    "initializers among the inputs, before they could be fed": Strange(
        _xy(HEAD + " y = MatMul(r, v)"),
        edit=_overridable,
        ir=3,
        opset=8,
    ),
}

CONVOLUTIONS = {
    "a transposed convolution over one axis": Strange(
        _on("float[n, 8, t] x", "float[n, 16, m] y", """
            c = ConvTranspose <strides = [2], pads = [1, 1]> (x, up)  y = LeakyRelu(c) """),
    ),
    "a transposed convolution to a few channels": Strange(
        _on("float[n, 8, 7, w] x", "float[n, 3, 14, v] y", """
            c = ConvTranspose <strides = [2, 2], pads = [2, 2, 2, 2], output_padding = [1, 1]>
                (x, wide_up)
            y = Tanh(c) """),
    ),
}  # fmt: skip

OPSETS = {
    f"opset {opset}": Strange(
        _on("float[n, 3, 6, 6] x", "float[n, 8] y", """
            c = Conv <pads = [1, 1, 1, 1]> (x, filters)  a = Relu(c)
            p = GlobalAveragePool(a)  q = Flatten(p)  h = Gemm(q, w, b)  t = Tanh(h)
            y = Softmax <axis = 1> (t) """),
        opset=opset, ir=8,
    )
    for opset in range(7, 27)
}  # fmt: skip

MODELS: Mapping[str, Strange] = MappingProxyType(
    CONTROL
    | CONTAINERS
    | STORED
    | QUANTISED
    | CONTRIBUTED
    | TRAINING
    | ENDS
    | RANDOM
    | SAID
    | CONVOLUTIONS
    | OPSETS
)
