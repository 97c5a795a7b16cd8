"""Two bodies share a key exactly if they compute the same thing up to names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tracea_graph.ir import Attr, Blob, Node
from tracea_graph.kernels.cpu.panels import PANELS
from tracea_graph.ops import OpParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.function_body import Body, structural_key
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import Norm
from tracea_graph.ops.weight_layouts import KN

NODES = (
    Node("MatMul", ("x", "w"), ("m",)),
    Node("Constant", (), ("c",), {"value": np.array(0.5, np.float32)}),
    Node("Mul", ("m", "c"), ("s",)),
    Node("Softmax", ("s",), ("y",), {"axis": -1}),
)
INPUTS, OUTPUTS = ("x", "w"), ("y",)
KEY = structural_key(NODES, INPUTS, OUTPUTS)


def renamed(nodes: tuple[Node, ...]) -> list[Node]:
    def name(value: str) -> str:
        return f"layer7/{value}" if value else ""

    return [
        replace(
            n,
            inputs=tuple(map(name, n.inputs)),
            outputs=tuple(map(name, n.outputs)),
            name="other",
            source=5,
        )
        for n in nodes
    ]


def test_names_do_not_matter() -> None:
    assert structural_key(renamed(NODES), ("layer7/x", "layer7/w"), ("layer7/y",)) == KEY


def with_attrs(index: int, attrs: dict[str, Attr]) -> list[Node]:
    return [replace(n, attrs=attrs) if i == index else n for i, n in enumerate(NODES)]


CHANGES = {
    "attribute": (with_attrs(3, {"axis": 1}), INPUTS, OUTPUTS),
    "attribute's type": (with_attrs(3, {"axis": -1.0}), INPUTS, OUTPUTS),
    "literal": (with_attrs(1, {"value": np.array(0.25, np.float32)}), INPUTS, OUTPUTS),
    "literal's type": (with_attrs(1, {"value": np.array(0.5)}), INPUTS, OUTPUTS),
    "literal's shape": (with_attrs(1, {"value": np.full(1, 0.5, np.float32)}), INPUTS, OUTPUTS),
    "op": ([replace(NODES[0], op="Gemm"), *NODES[1:]], INPUTS, OUTPUTS),
    "domain": ([replace(NODES[0], domain="my"), *NODES[1:]], INPUTS, OUTPUTS),
    "wiring": ([replace(NODES[0], inputs=("w", "x")), *NODES[1:]], INPUTS, OUTPUTS),
    "one operand twice": ([replace(NODES[0], inputs=("x", "x")), *NODES[1:]], INPUTS, OUTPUTS),
    "absent operand": ([replace(NODES[0], inputs=("x", "w", "")), *NODES[1:]], INPUTS, OUTPUTS),
    "order of inputs": (list(NODES), ("w", "x"), OUTPUTS),
    "arity": (list(NODES), (*INPUTS, "unused"), OUTPUTS),
    "output": (list(NODES), INPUTS, ("s",)),
    "outputs": (list(NODES), INPUTS, ("y", "s")),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_is_computed_matters(what: str) -> None:
    assert structural_key(*CHANGES[what]) != KEY


def test_blobs_count_by_their_bytes() -> None:
    def key(data: bytes) -> str:
        node = Node("If", ("x",), ("y",), {"then_branch": Blob("graph", data)})
        return structural_key([node], ("x",), ("y",))

    assert key(b"a") == key(b"a") != key(b"b")


def test_equal_parameters_share_a_body_and_different_ones_do_not() -> None:
    scaled = Chain(("full",), (Step("mul", (0, 0.5)),), (1,))
    variants: list[OpParams] = [
        GemmParams(32, 20, PANELS),
        GemmParams(32, 32, PANELS),
        GemmParams(32, 20, KN),
        GemmParams(32, 20, PANELS, bias=True),
        GemmParams(32, 20, PANELS, epilogue=scaled),
        GemmParams(32, 20, PANELS, norm=Norm("rms", 1e-6, beta=False)),
        GemmParams(32, 20, PANELS, norm=Norm("rms", 1e-5, beta=False)),
        ElementwiseParams(scaled),
    ]
    keys = [params.body(17).key for params in variants]
    assert len(set(keys)) == len(keys)
    assert keys == [params.body(17).key for params in variants]


def test_an_input_that_is_a_result_is_copied() -> None:
    body = ElementwiseParams(Chain(("full",), (), (0,))).body(17)
    assert isinstance(body, Body)
    assert [n.op for n in body.nodes] == ["Identity"]
