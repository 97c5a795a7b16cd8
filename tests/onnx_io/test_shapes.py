"""Symbolic shapes: every value in terms of the model's own symbols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, helper

from tests.onnx_io.samples import F32, I64, model, node, read, tensor, value
from tracea_graph.ir import DType, TensorSpec, symbols_of
from tracea_graph.onnx_io.model_validation import _may_propagate, infer_all_types
from tracea_graph.onnx_io.value_facts import ValueFacts


def spec(nodes: list[NodeProto], folder: Path, *tensors: Any, opset: int = 17) -> str:
    """The inferred spec of ``y`` for inputs ``x`` f32[b,s,12] and ``p`` f32[b,t,12]."""
    inputs = [value("x", ["b", "s", 12]), value("p", ["b", "t", 12])]
    kind = I64 if nodes[-1].op_type == "Range" else F32
    proto = model(nodes, inputs, [value("y", None, kind)], tensors, opset)
    return str(read(proto, folder).graph.spec("y"))


def ints(name: str, *numbers: int) -> Any:
    return tensor(name, list(numbers), np.int64)


SPLIT_HEADS = [
    node("Shape", "x", "sh"), node("Gather", "sh zero", "b"), node("Gather", "sh one", "s"),
    node("Unsqueeze", "b z", "b1"), node("Unsqueeze", "s z", "s1"),
    node("Concat", "b1 s1 heads", "t", axis=0), node("Reshape", "x t", "h"),
]  # fmt: skip
HEADS = [tensor("zero", 0, np.int64), tensor("one", 1, np.int64), ints("z", 0)]


@pytest.mark.parametrize(
    ("heads", "shape"),
    [((3, 4), "f32[b,s,3,4]"), ((3, -1), "f32[b,s,3,4]"), ((-1,), "f32[b,s,12]")],
)
def test_reshape_by_computed_sizes(heads: tuple[int, ...], shape: str, tmp_path: Path) -> None:
    nodes = [*SPLIT_HEADS, node("Relu", "h", "y")]
    assert spec(nodes, tmp_path, *HEADS, ints("heads", *heads)) == shape


CASES: dict[str, tuple[list[NodeProto], list[Any], str]] = {
    "concat": ([node("Concat", "p x", "y", axis=1)], [], "f32[b,(s+t),12]"),
    "concat and slice back": (
        [node("Concat", "p x", "c", axis=1), node("Shape", "p", "q"),
         node("Slice", "q one two", "n"), node("Slice", "c n far one", "y")],
        [ints("one", 1), ints("two", 2), ints("far", 1 << 62)], "f32[b,s,12]",
    ),
    "merge axes": ([node("Reshape", "x k", "y")], [ints("k", -1, 12)], "f32[(b*s),12]"),
    "flatten": ([node("Flatten", "x", "y", axis=2)], [], "f32[(b*s),12]"),
    "last": (
        [node("Slice", "x m far one", "y")],
        [ints("m", -1), ints("far", 1 << 62), ints("one", 1)], "f32[b,min(s,1),12]",
    ),
    "as many of the last as there are": (
        [node("Shape", "x", "q"), node("Slice", "q one two", "n"), node("Neg", "n", "m"),
         node("Slice", "x m far one", "y")],
        [ints("one", 1), ints("two", 2), ints("far", 1 << 62)], "f32[b,s,12]",
    ),
    "as many of the last as others are": (
        [node("Shape", "p", "q"), node("Slice", "q one two", "n"), node("Neg", "n", "m"),
         node("Slice", "x m far one", "y")],
        [ints("one", 1), ints("two", 2), ints("far", 1 << 62)], "f32[b,min(s,t),12]",
    ),
    "all but first": (
        [node("Slice", "x one far one", "y")], [ints("one", 1), ints("far", 1 << 62)],
        "f32[b,max((s-1),0),12]",
    ),
    "first": (
        [node("Slice", "x z one one", "y")], [ints("z", 0), ints("one", 1)], "f32[b,min(s,1),12]",
    ),
    "all but last": (
        [node("Slice", "x z m one", "y")], [ints("z", 0), ints("m", -1), ints("one", 1)],
        "f32[b,max((s-1),0),12]",
    ),
    "from beyond a short end": (
        [node("Slice", "x two five one", "y")], [ints("two", 2), ints("five", 5), ints("one", 1)],
        "f32[b,max((min(s,5)-2),0),12]",
    ),
    **{
        f"table rows about its centre, {what}": (
            [node("Shape", "x", "q"), node("Slice", "q one two", "n"),
             node("Sub", "middle n", "a"), node("Add", "last n", "e"),
             node("Slice", "table a e z", "y")],
            [ints("one", 1), ints("two", 2), ints("z", 0), ints("middle", middle),
             ints("last", last), tensor("table", np.ones((rows, 12)))], shape,
        )
        for what, rows, middle, last, shape in (
            ("whole", 1023, 512, 511, "f32[max(((s*2)-1),0),12]"),
            ("longer table", 2000, 512, 511, "f32[max(((s*2)-1),0),12]"),
            ("clipped at the end", 1022, 512, 511, "f32[?0,12]"),
            ("from its end", 1023, 0, 1023, "f32[?0,12]"),
        )
    },
    "table rows about its centre, by frames": (
        [node("Transpose", "x", "c", perm=[0, 2, 1]),
         node("MaxPool", "c", "f", kernel_shape=[3], strides=[2]), node("Shape", "f", "q"),
         node("Slice", "q two three", "n"), node("Sub", "middle n", "a"),
         node("Add", "last n", "e"), node("Slice", "table a e z", "places"),
         node("Unsqueeze", "places z", "r"), node("Slice", "r z n one", "y")],
        [ints("one", 1), ints("two", 2), ints("three", 3), ints("z", 0), ints("middle", 512),
         ints("last", 511), tensor("table", np.ones((1023, 12)))], "f32[1,(((s+1)//2)-1),12]",
    ),
    "range": (
        [node("Shape", "x", "q"), node("Gather", "q i", "n"), node("Range", "o n i", "y")],
        [tensor("i", 1, np.int64), tensor("o", 0, np.int64)], "i64[s]",
    ),
    "range over a size that might be thought negative": (
        [node("Slice", "x i2 far i2", "c"), node("Shape", "c", "q"), node("Gather", "q i", "n"),
         node("Range", "o n i", "y")],
        [tensor("i", 1, np.int64), tensor("o", 0, np.int64), ints("i2", 1), ints("far", 1 << 62)],
        "i64[max((s-1),0)]",
    ),
    "cut to such a size": (
        [node("Slice", "x one far one", "c"), node("Shape", "c", "q"),
         node("Slice", "q one two", "n"), node("Slice", "c z n one", "y")],
        [ints("one", 1), ints("two", 2), ints("z", 0), ints("far", 1 << 62)],
        "f32[b,max((s-1),0),12]",
    ),
    "expand by where": (
        [node("Shape", "x", "q"), node("Equal", "k m", "e"), node("Where", "e q k", "t"),
         node("Expand", "one t", "y")],
        [ints("k", -1, -1, 12), ints("m", -1), tensor("one", [[[1.0]]])], "f32[b,s,12]",
    ),
    "table rows": (
        [node("Shape", "x", "q"), node("Slice", "q one two", "n"),
         node("Slice", "table z n z", "r"), node("Add", "x r", "y")],
        [ints("one", 1), ints("two", 2), ints("z", 0), tensor("table", np.ones((512, 12)))],
        "f32[b,s,12]",
    ),
    "matmul": (
        [node("Transpose", "x", "k", perm=[0, 2, 1]), node("MatMul", "x k", "y")], [],
        "f32[b,s,s]",
    ),
    "tile": ([node("Tile", "x r", "y")], [ints("r", 1, 2, 1)], "f32[b,(s*2),12]"),
    "pad": ([node("Pad", "x q", "y")], [ints("q", 0, 1, 0, 0, 2, 0)], "f32[b,(s+3),12]"),
    "size": (
        [node("Shape", "x", "q"), node("ConstantOfShape", "q", "o"), node("Add", "o x", "y")], [],
        "f32[b,s,12]",
    ),
    "unknown": (
        [node("Compress", "x c", "y", axis=1)], [tensor("c", [1, 0], bool)], "f32[b,?0,12]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_inference(name: str, tmp_path: Path) -> None:
    nodes, tensors, expected = CASES[name]
    assert spec(nodes, tmp_path, *tensors) == expected


def test_layernorm_before_its_opset_and_contrib_ops(tmp_path: Path) -> None:
    nodes = [node("LayerNormalization", "x w", "a"), node("Relu", "a", "y")]
    assert spec(nodes, tmp_path, tensor("w", np.ones(12)), opset=12) == "f32[b,s,12]"
    nodes = [node("FastGelu", "x", "a", domain="com.microsoft"), node("Relu", "a", "y")]
    assert spec(nodes, tmp_path) == "f32[b,s,12]"


def test_unnamed_sizes_get_symbols_of_their_own(tmp_path: Path) -> None:
    inputs = [value("x", [None, 3]), value("z", [None, 3])]
    proto = model([node("Relu", "x", "y"), node("Relu", "z", "w")], inputs,
                  [value("y", None), value("w", None)])  # fmt: skip
    graph = read(proto, tmp_path).graph
    assert graph.spec("x") == graph.spec("y") != graph.spec("z") == graph.spec("w")
    assert {str(graph.spec("x")), str(graph.spec("z"))} == {"f32[?0,3]", "f32[?1,3]"}


def test_lying_value_info_does_not_win(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "a"), node("Neg", "a", "y")], [value("x", ["n", 3])],
                  [value("y", None)], value_info=[value("a", [7, 3])])  # fmt: skip
    assert str(read(proto, tmp_path).graph.spec("y")) == "f32[n,3]"


def test_declared_types_help_where_nothing_is_known(tmp_path: Path) -> None:
    proto = model(
        [node("Mystery", "x", "a", domain="my.own"), node("Neg", "a", "y")],
        [value("x", ["n", 3])], [value("y", None)], value_info=[value("a", ["n", 9], F32)],
    )  # fmt: skip
    proto.opset_import.append(helper.make_opsetid("my.own", 1))
    assert str(read(proto, tmp_path).graph.spec("y")) == "f32[n,9]"


def test_transformer_exports_are_fully_known(tmp_path: Path) -> None:
    """A real exporter's graph, once per attention spelling, without its weights' values."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tracea_graph.onnx_io import load

    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96,
        vocab_size=50, attn_implementation="eager",
    )  # fmt: skip

    class Plain(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.bert = transformers.BertModel(config, add_pooling_layer=False).eval()

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

    ids = torch.ones((2, 9), dtype=torch.int64)
    path = tmp_path / "bert.onnx"
    torch.onnx.export(
        Plain(), (ids, ids), str(path), dynamo=False, opset_version=17,
        input_names=["ids", "mask"], output_names=["y"],
        dynamic_axes={"ids": {0: "batch", 1: "seq"}, "mask": {0: "batch", 1: "seq"}},
    )  # fmt: skip
    graph = load(path).graph
    assert str(graph.spec("y")) == "f32[batch,seq,64]"
    for region in graph.regions():
        for name in region.writes:
            shape = graph.spec(name).shape
            assert shape is not None, name
            assert {s for d in shape for s in symbols_of(d)} <= {"batch", "seq"}, name


def test_sizes_beyond_what_onnx_can_write_are_followed() -> None:
    facts = ValueFacts()
    facts.specs["x"] = TensorSpec(DType.F32, (1 << 70, 3))
    facts.learn("y", facts.type_of("x"))
    assert facts.shape("y") == (1 << 70, 3)


def test_a_group_norm_has_the_shape_of_its_image(tmp_path: Path) -> None:
    """Onnx infers only the type of this operator from opset 21 on."""
    factors = tensor("gamma", np.ones(6)), tensor("beta", np.zeros(6))
    nodes = [node("GroupNormalization", "i gamma beta", "y", num_groups=2)]
    inputs = [value("i", ["n", 6, 5, 5])]
    proto = model(nodes, inputs, [value("y", None)], factors, 21)
    assert str(read(proto, tmp_path).graph.spec("y")) == "f32[n,6,5,5]"


@pytest.mark.parametrize(
    ("dims", "followed"), [([4], True), (["n"], True), ([1 << 20], False), ([1 << 20, 3], True)]
)
def test_values_of_long_vectors_are_not_followed(dims: list[Any], followed: bool) -> None:
    """Of 2^24 elements they would take 2.5 GB; of 2^40, all memory."""
    proto = model([node("Add", "x x", "y")], [value("x", dims)], [value("y", dims)])
    assert _may_propagate(proto) == followed
    assert infer_all_types(proto, ["y"])["y"] == proto.graph.output[0].type
