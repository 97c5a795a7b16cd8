"""Einsum becomes products, outer products and transposes; what it cannot become stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, normal, ops, optimized, reasons, schedule_only
from tracea_graph.passes.decompose.decompose import Decompose

SIZES = {"b": 2, "h": 3, "i": 5, "j": 7, "k": 4, "n": 6, "d": 8}


def shape(labels: str) -> list[int]:
    return [SIZES[i] for i in labels]


@pytest.mark.parametrize(
    "equation",
    [
        "ibk,knd->ibnd", "ibnd,jbnd->bnij", "bnij,jbnd->ibnd", "ibnd,hnd->ibh", "bihd,hkd->bihk",
        "bhid,bhjd->bhij", "bij,bjk->bik", "ij,jk", "ij,j->i", "j,j->", "bi,bi->b", "i,j->ij",
        "bi,j->bij", "bik,bk->bik", "bik,k->kbi", "bijk->kjbi", "ij->ij", "b i d, b j d -> b i j",
    ],
)  # fmt: skip
@pytest.mark.parametrize("constant", ["", "left", "right"])
def test_it_is_spelled_and_right(equation: str, constant: str) -> None:
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if (constant == "right" and len(terms) < 2) or (constant == "left" and len(terms) < 2):
        pytest.skip("one operand")
    net, feeds, names = Net(), {}, []
    for name, labels in zip(("left", "right"), terms, strict=False):
        if constant == name:
            names.append(net.weight(*shape(labels)))
        else:
            names.append(net.input(name, *shape(labels)))
            feeds[name] = normal(*shape(labels), seed=len(names))
    graph = net.graph(net("Einsum", *names, equation=equation))
    schedule_only(graph, Decompose())
    assert "Einsum" not in ops(graph)
    assert_same(net, graph, feeds)


def test_sizes_that_are_no_numbers() -> None:
    net = Net()
    x, y = net.input("x", "n", "seq", 4, 8), net.input("y", "n", "keys", 4, 8)
    heads = net("Einsum", net.input("z", "n", "seq", 16), net.weight(16, 4, 8),
                equation="bsi,ihd->bshd")  # fmt: skip
    scores = net("Einsum", net("Add", x, heads), y, equation="bqhd,bkhd->bhqk")
    graph = net.graph(net("Softmax", scores, axis=-1))
    optimized(graph)
    assert "Einsum" not in ops(graph)
    feeds = {"x": normal(2, 5, 4, 8), "y": normal(2, 7, 4, 8), "z": normal(2, 5, 16)}
    assert_same(net, graph, feeds, 1e-5)


def test_rows_of_two_axes_beside_a_batch_of_no_known_size() -> None:
    """Distances of positions: a matrix for each query, which all items and heads share."""
    net = Net()
    x, table = net.input("x", "n", 4, "seq", 8), net.input("table", "seq", "keys", 8)
    scores = net("Einsum", x, table, equation="bhld,lrd->bhlr")
    graph = net.graph(net("Softmax", scores, axis=-1))
    optimized(graph)
    assert "Einsum" not in ops(graph)
    feeds = {"x": normal(2, 4, 5, 8), "table": normal(5, 7, 8)}
    assert_same(net, graph, feeds, 1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "reason"),
    [
        ("ii->i", [(4, 4)], "it takes the diagonal of an operand"),
        ("ij->i", [(4, 5)], "it sums over an axis that only one operand has"),
        ("ij,k->ik", [(4, 5), (3,)], "it sums over an axis that only one operand has"),
        ("...ij->...ji", [(2, 4, 5)],
         "its equation has an ellipsis, or it has more than two operands"),
        ("ij,ij->ij", [(4, 5), (1, 5)],
         "its operands are not known to have equal sizes along axis 'i'"),
    ],
)  # fmt: skip
def test_others_stay(equation: str, shapes: list[tuple[int, ...]], reason: str) -> None:
    net = Net()
    names = [net.input(f"x{i}", *s) for i, s in enumerate(shapes)]
    graph = net.graph(net("Einsum", *names, equation=equation))
    trace = schedule_only(graph, Decompose())
    assert ops(graph) == ["Einsum"]
    assert reasons(trace, "decompose") == {reason}
    feeds = {f"x{i}": np.asarray(normal(*s, seed=i)) for i, s in enumerate(shapes)}
    assert_same(net, graph, feeds)
