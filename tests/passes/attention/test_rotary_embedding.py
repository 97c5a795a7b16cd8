"""The RotaryEmbedding operators become arithmetic on views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, only, ops, optimized, reasons, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.attention.rotary_embedding import RotaryEmbedding

HEADS, SIZE = 3, 16


def feeds(net: Net, **sizes: int) -> dict[str, Any]:
    given = {"batch": 2, "seq": 5, **sizes}
    arrays: dict[str, Any] = {}
    for i, (name, info) in enumerate(net.inputs.items()):
        dims = [d.dim_value or given[d.dim_param] for d in info.type.tensor_type.shape.dim]
        if info.type.tensor_type.elem_type == DType.I64.onnx:
            arrays[name] = np.random.default_rng(i).integers(0, 50, dims)
        else:
            arrays[name] = normal(*dims, seed=i)
    return arrays


def tables(net: Net, half: int = SIZE // 2) -> tuple[str, str]:
    return net.input("cos", "batch", "seq", half), net.input("sin", "batch", "seq", half)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("merged", [True, False])
def test_whole_heads(merged: bool, interleaved: int) -> None:
    net = Net(23)
    dims = ("batch", "seq", HEADS * SIZE) if merged else ("batch", HEADS, "seq", SIZE)
    attrs: dict[str, Any] = {"interleaved": interleaved}
    if merged:
        attrs["num_heads"] = HEADS
    graph = net.graph(net("RotaryEmbedding", net.input("x", *dims), *tables(net), **attrs))
    optimized(graph)
    assert ops(graph) == ["FusedConcat"]
    assert_same(net, graph, feeds(net))


def test_a_part_of_every_head() -> None:
    net = Net(23)
    x = net.input("x", "batch", HEADS, "seq", 24)
    graph = net.graph(net("RotaryEmbedding", x, *tables(net), rotary_embedding_dim=SIZE))
    optimized(graph)
    assert len(only(graph, "FusedConcat").params.parts) == 3
    assert_same(net, graph, feeds(net))


@pytest.mark.parametrize("constant", [True, False])
def test_positions_look_the_tables_up(constant: bool) -> None:
    net = Net(23)
    x = net.input("x", "batch", HEADS, "seq", 32)
    both = [net.weight(50, 16) if constant else net.input(n, 50, 16) for n in ("cos", "sin")]
    graph = net.graph(net("RotaryEmbedding", x, *both, net.ids("p", "batch", "seq")))
    optimized(graph)
    looked = "FusedEmbedding" if constant else "Gather"
    assert ops(graph) == [looked, looked, "FusedConcat"]
    assert_same(net, graph, feeds(net))


def test_the_head_split_before_it_is_read_in_place() -> None:
    net = Net(23)
    split = net("Reshape", net.input("x", "batch", "seq", 48), net.ints(0, 0, HEADS, SIZE))
    x = net("Transpose", split, perm=[0, 2, 1, 3])
    graph = net.graph(net("RotaryEmbedding", x, *tables(net)))
    optimized(graph)
    assert ops(graph) == ["FusedConcat"] and "x" in only(graph, "FusedConcat").operands
    assert_same(net, graph, feeds(net))


@pytest.mark.parametrize(
    ("dims", "attrs", "half", "reason"),
    [
        (("batch", 3, "seq", "d"), {}, 8, "the number or size of its heads is not known"),
        (
            ("batch", 3, "seq", 24), {"interleaved": 1, "rotary_embedding_dim": 16}, 8,
            "it rotates only a part of each head in interleaved pairs, or its tables do not fit",
        ),
    ],
)  # fmt: skip
def test_what_is_not_known_stays(
    dims: tuple[Any, ...], attrs: dict[str, Any], half: int, reason: str
) -> None:
    net = Net(23)
    graph = net.graph(net("RotaryEmbedding", net.input("x", *dims), *tables(net, half), **attrs))
    assert reasons(schedule_only(graph, RotaryEmbedding()), "rotary-embedding") == {reason}
    assert ops(graph) == ["RotaryEmbedding"]
