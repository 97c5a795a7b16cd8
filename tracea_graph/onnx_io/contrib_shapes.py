"""Shape inference for operators of ``com.microsoft`` and ``ai.onnx.ml``.

The onnx package knows neither, and models that ONNX Runtime saved after its optimizations, or that
were converted from scikit-learn, declare no inner sizes.  Sources: the documentation of ONNX
Runtime's contributed operators and of ai.onnx.ml.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnx import NodeProto

from tracea_graph.ir import DType, Extent
from tracea_graph.onnx_io.broadcast_shape_rules import Rule, broadcast_of, product_of
from tracea_graph.onnx_io.conv_shape_rules import WINDOWS, conv_sizes, pool_sizes
from tracea_graph.onnx_io.value_facts import Partial, Shape, ValueFacts, attribute

__all__ = ["CONTRIB_SHAPES", "ContribShape"]


@dataclass(frozen=True)
class ContribShape:
    """Rule for the sizes of an operator's first result.

    ``like`` is the index of the operand whose type the result has, or a function that returns this
    index for a node.
    """

    sizes: Rule
    like: int | Callable[[NodeProto], int] = 0

    def typed_operand(self, node: NodeProto) -> str:
        """Return the operand that has the result's type."""
        return str(node.input[self.like if isinstance(self.like, int) else self.like(node)])


def _same(node: NodeProto, facts: ValueFacts) -> Partial:
    return facts.shape(node.input[0])


def _transposed(shape: Shape | None, transpose: bool) -> Shape | None:
    return (*shape[:-2], shape[-1], shape[-2]) if shape and len(shape) > 1 and transpose else shape


def _product(node: NodeProto, facts: ValueFacts) -> Partial:
    if attribute(node, "transBatchA", 0) or attribute(node, "transBatchB", 0):
        return None
    sides = zip(node.input[:2], ("transA", "transB"), strict=True)
    a, b = (_transposed(facts.shape(v), bool(attribute(node, flag, 0))) for v, flag in sides)
    return product_of(a, b)


def _blocked_product(node: NodeProto, facts: ValueFacts) -> Partial:
    a = facts.shape(node.input[0])
    return [*a[:-1], attribute(node, "N")] if a else None


def _blocked_rows(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes of rows gathered from a table of codes, several of which may share a byte."""
    data, ids = (facts.shape(v) for v in node.input[:2])
    if not data or ids is None or attribute(node, "gather_axis", 0):
        return None
    per = 8 // attribute(node, "bits", 4) if facts.dtype(node.input[0]) is DType.U8 else 1
    last = data[-1] * per if isinstance(data[-1], int) else None
    return [*ids, *data[1:-1], last]


def _attention(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes of attention whose queries, keys and values come from one matrix."""
    x, weight = (facts.shape(v) for v in node.input[:2])
    given = attribute(node, "qkv_hidden_sizes")
    if x is None or weight is None or len(weight) != 2:
        return None
    wide = weight[1]
    size: Extent | None = wide // 3 if isinstance(wide, int) else None
    return [*x[:2], given[2] if given else size]


def _heads(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes of attention with three operands; packed operands are left unknown."""
    values = [facts.shape(v) for v in node.input[:3] if v]
    if len(values) < 3 or values[0] is None or len(values[0]) != 3:
        return None
    last = values[2]
    return [*values[0][:2], last[-1] if last is not None and len(last) == 3 else None]


def _grouped(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes of the queries, whose heads may precede those of keys and values."""
    x = facts.shape(node.input[0])
    if x is None or len(x) != 3 or (len(node.input) > 1 and node.input[1]):
        return x
    heads, shared = (attribute(node, f"{kind}num_heads", 0) for kind in ("", "kv_"))
    every = heads + 2 * shared
    return [*x[:2], x[2] // every * heads if isinstance(x[2], int) and every else None]


def _quantised(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes from two operands, each followed by its scale and zero point."""
    return broadcast_of([facts.shape(node.input[0]), facts.shape(node.input[3])])


def _quantised_where(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes from a condition and two operands, each of these followed by scale and zero point."""
    return broadcast_of([facts.shape(node.input[i]) for i in (0, 1, 4)])


def _quantised_concat(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes of concatenated operands, which follow the result's scale and zero point."""
    shapes = [facts.shape(v) for v in node.input[2::3]]
    if not shapes or any(s is None or len(s) != len(shapes[0] or ()) for s in shapes):
        return None
    known = [s for s in shapes if s is not None]
    axis = attribute(node, "axis", 0) % max(len(known[0]), 1)
    total = sum(s[axis] for s in known if isinstance(s[axis], int))
    whole: Extent | None = total if all(isinstance(s[axis], int) for s in known) else None
    return [*known[0][:axis], whole, *known[0][axis + 1 :]]


def _quantised_gemm(node: NodeProto, facts: ValueFacts) -> Partial:
    sides = ((0, "transA"), (3, "transB"))
    a, b = (
        _transposed(facts.shape(node.input[i]), bool(attribute(node, flag, 0)))
        for i, flag in sides
    )
    return product_of(a, b)


def _typed_by_result_scale(node: NodeProto) -> int:
    """A QGemm rounds to its first operand's type; without a result scale it returns float32."""
    return 0 if len(node.input) > 7 and node.input[7] else 1


def _channels_last(node: NodeProto) -> bool:
    return node.op_type == "NhwcMaxPool" or bool(attribute(node, "channels_last", 0))


def _quantised_conv(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes of a convolution of integers, whose channels may come last."""
    weight = facts.shape(node.input[3])
    return _image(node, facts, lambda data: conv_sizes(node, data, weight))


def _quantised_pool(node: NodeProto, facts: ValueFacts) -> Partial:
    return _image(node, facts, lambda data: pool_sizes(node, data))


def _quantised_global_pool(node: NodeProto, facts: ValueFacts) -> Partial:
    return _image(node, facts, lambda data: data and [*data[:2], *(1 for _ in data[2:])])


def _image(
    node: NodeProto, facts: ValueFacts, sizes: Callable[[Shape | None], Partial]
) -> Partial:
    """Apply a rule for channels in second place to an operator that may have them last."""
    data = facts.shape(node.input[0])
    if data is None or not _channels_last(node):
        return sizes(data)
    made = sizes((data[0], data[-1], *data[1:-1]))
    return made and [made[0], *made[2:], made[1]]


def _embedding(node: NodeProto, facts: ValueFacts) -> Partial:
    ids, table = facts.shape(node.input[0]), facts.shape(node.input[2])
    return [*ids, table[1]] if ids is not None and table is not None else None


def _scaled(node: NodeProto, facts: ValueFacts) -> Partial:
    """Sizes of a float32 result; it has the operand's type only if that is float32."""
    x = node.input[0]
    return facts.shape(x) if facts.dtype(x) is DType.F32 else None


def _targets(name: str) -> Rule:
    """Rule for a row per input row, whose length an attribute gives."""

    def sizes(node: NodeProto, facts: ValueFacts) -> Partial:
        x = _scaled(node, facts)
        return [x[0], attribute(node, name, 1)] if x is not None and len(x) == 2 else None

    return sizes


_CONTRIBUTED: Mapping[str, ContribShape] = MappingProxyType(
    {
        "Attention": ContribShape(_attention),
        "BiasAdd": ContribShape(_same),
        "BiasSoftmax": ContribShape(_same),
        "DynamicQuantizeMatMul": ContribShape(_product),
        "DequantizeLinear": ContribShape(_same, like=1),
        "EmbedLayerNormalization": ContribShape(_embedding, like=2),
        "FusedConv": ContribShape(WINDOWS["Conv"]),
        "FusedGemm": ContribShape(_product),
        "FusedMatMul": ContribShape(_product),
        "GatherBlockQuantized": ContribShape(_blocked_rows, like=2),
        "GroupQueryAttention": ContribShape(_grouped),
        "MatMulIntegerToFloat": ContribShape(_product, like=2),
        "MatMulNBits": ContribShape(_blocked_product),
        "MultiHeadAttention": ContribShape(_heads),
        "NhwcMaxPool": ContribShape(_quantised_pool),
        "QAttention": ContribShape(_attention, like=3),
        "QGemm": ContribShape(_quantised_gemm, like=_typed_by_result_scale),
        "QLinearAdd": ContribShape(_quantised),
        "QLinearAveragePool": ContribShape(_quantised_pool),
        "QLinearConcat": ContribShape(_quantised_concat, like=2),
        "QLinearConv": ContribShape(_quantised_conv, like=7),
        "QLinearGlobalAveragePool": ContribShape(_quantised_global_pool),
        "QLinearLeakyRelu": ContribShape(_same),
        "QLinearMul": ContribShape(_quantised),
        "QLinearSigmoid": ContribShape(_same),
        "QLinearSoftmax": ContribShape(_same),
        "QLinearWhere": ContribShape(_quantised_where, like=1),
        "QuantizeLinear": ContribShape(_same, like=lambda node: len(node.input) - 1),
    }
)
_CLASSIC: Mapping[str, ContribShape] = MappingProxyType(
    {
        "Binarizer": ContribShape(_same),
        "Imputer": ContribShape(_same),
        "LinearRegressor": ContribShape(_targets("targets")),
        "Normalizer": ContribShape(_scaled),
        "Scaler": ContribShape(_scaled),
        "TreeEnsembleRegressor": ContribShape(_targets("n_targets")),
    }
)
CONTRIB_SHAPES: Mapping[str, Mapping[str, ContribShape]] = MappingProxyType(
    {"com.microsoft": _CONTRIBUTED, "ai.onnx.ml": _CLASSIC}
)
"""Rules by domain and operator."""
