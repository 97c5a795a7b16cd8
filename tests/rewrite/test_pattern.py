"""The pattern engine: what matches, what it binds, and why a fit is not enough."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from tests.graphs import Net
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.reason_codes import unsuited_reason
from tracea_graph.rewrite import Match, Miss, Proposal, Rewrite, Rule, RulePass, match
from tracea_graph.ttg import Region, TileGraph


def found(pattern: Any, net: Net, *outputs: str) -> Match | Miss | None:
    """Match at the first output's producer."""
    graph = net.graph(*outputs)
    root = graph.producer(outputs[0])
    assert root is not None
    return match(pattern, graph, root)


def new() -> tuple[Net, str]:
    net = Net()
    return net, net.input("x", "batch", 8)


def relu_of_sum(op: Any, x: Any, b: Any) -> Any:
    return op.Relu(op.Add(x, b, label="sum"))


def test_a_match_binds_values_labels_and_what_it_covers() -> None:
    net, x = new()
    bias = net.weight(8)
    result = found(relu_of_sum, net, net("Relu", net("Add", x, bias)))
    assert isinstance(result, Match)
    assert result.values == {"x": x, "b": bias}
    assert result.labels["sum"].op == "Add"
    assert [r.op for r in result.covered] == ["Relu", "Add"]
    assert result.spec("b").shape == (8,)


def test_another_shape_of_graph_is_no_match_and_no_miss() -> None:
    net, x = new()
    assert found(relu_of_sum, net, net("Relu", net("Sub", x, net.weight(8)))) is None
    net, x = new()
    assert found(relu_of_sum, net, net("Tanh", net("Add", x, net.weight(8)))) is None
    net, x = new()
    assert found(relu_of_sum, net, net("Relu", x)) is None


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Min"])
def test_commutative_operators_match_either_way_round(op: str) -> None:
    def pattern(b: Any, x: Any) -> Any:
        return getattr(b, op)(b.Exp(x), x)

    for flip in (False, True):
        net, x = new()
        operands = (net("Exp", x), x)
        assert isinstance(found(pattern, net, net(op, *operands[:: -1 if flip else 1])), Match)


@pytest.mark.parametrize("op", ["Sub", "Div"])
def test_others_do_not(op: str) -> None:
    def pattern(b: Any, x: Any) -> Any:
        return getattr(b, op)(b.Exp(x), x)

    net, x = new()
    assert found(pattern, net, net(op, x, net("Exp", x))) is None


def test_a_repeated_variable_is_one_value() -> None:
    def square(op: Any, x: Any) -> Any:
        return op.Mul(x, x)

    net, x = new()
    assert isinstance(found(square, net, net("Mul", x, x)), Match)
    net, x = new()
    assert found(square, net, net("Mul", x, net.input("y", "batch", 8))) is None


def test_either_order_is_tried_until_the_whole_pattern_fits() -> None:
    def pattern(op: Any, x: Any, y: Any) -> Any:
        return op.Add(op.Mul(x, y), op.Exp(x))

    net, x = new()
    y = net.input("y", "batch", 8)
    result = found(pattern, net, net("Add", net("Mul", y, x), net("Exp", x)))
    assert isinstance(result, Match)
    assert result.values == {"x": x, "y": y}


def literal(tree: float) -> Any:
    return lambda op, x: op.Mul(x, tree)


@pytest.mark.parametrize(
    ("written", "tree", "fits"),
    [
        (0.70710678, 0.70710678, True),
        (0.70711, 0.70710678, True),
        (0.7071, 0.70710678, True),
        (0.707, 0.70710678, False),
        (0.5, 0.5, True),
        (0.50002, 0.5, False),
        (1.0001, 1.0, False),
        (-0.5, 0.5, False),
        (float("nan"), 0.5, False),
        (0.0, 0.0, True),
        (1e-9, 0.0, False),
    ],
)
def test_literals_match_to_the_digits_exporters_write(
    written: float, tree: float, fits: bool
) -> None:
    net, x = new()
    assert isinstance(found(literal(tree), net, net("Mul", x, written)), Match) == fits


def test_a_literal_may_have_any_rank_but_one_element_only() -> None:
    net, x = new()
    one = net.const(np.full((1, 1), 0.5))
    assert isinstance(found(literal(0.5), net, net("Mul", x, one)), Match)
    net, x = new()
    assert found(literal(0.5), net, net("Mul", x, net.const(np.full(8, 0.5)))) is None
    net, x = new()
    assert found(literal(0.5), net, net("Mul", x, net.input("c"))) is None


NORMAL_FORMS = {
    "scaled": (
        lambda op, x: op.scaled(x, 0.25),
        [lambda n, x: n("Mul", x, 0.25), lambda n, x: n("Mul", 0.25, x),
         lambda n, x: n("Div", x, 4.0)],
        [lambda n, x: n("Div", x, 0.25), lambda n, x: n("Div", 4.0, x)],
    ),
    "square": (
        lambda op, x: op.square(x),
        [lambda n, x: n("Mul", x, x), lambda n, x: n("Pow", x, 2.0)],
        [lambda n, x: n("Pow", x, 3.0), lambda n, x: n("Pow", 2.0, x)],
    ),
    "rsqrt": (
        lambda op, x: op.rsqrt(x),
        [lambda n, x: n("Reciprocal", n("Sqrt", x)), lambda n, x: n("Div", 1.0, n("Sqrt", x)),
         lambda n, x: n("Pow", x, -0.5)],
        [lambda n, x: n("Sqrt", n("Exp", x)), lambda n, x: n("Div", 2.0, n("Sqrt", x))],
    ),
    "over_sqrt": (
        lambda op, x, a: op.over_sqrt(a, op.Exp(x)),
        [lambda n, x: n("Div", x, n("Sqrt", n("Exp", x))),
         lambda n, x: n("Mul", x, n("Reciprocal", n("Sqrt", n("Exp", x)))),
         lambda n, x: n("Mul", n("Pow", n("Exp", x), -0.5), x)],
        [lambda n, x: n("Mul", x, n("Sqrt", n("Exp", x))),
         lambda n, x: n("Div", n("Sqrt", n("Exp", x)), x)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", NORMAL_FORMS)
def test_spellings_of_one_form_match_and_others_do_not(form: str) -> None:
    pattern, same, different = cast("tuple[Any, Any, Any]", NORMAL_FORMS[form])
    for spellings, want in ((same, True), (different, False)):
        for spelling in spellings:
            net, x = new()
            assert isinstance(found(pattern, net, spelling(net, x)), Match) == want


def test_further_operands_must_be_constant() -> None:
    def mean(op: Any, x: Any) -> Any:
        return op.ReduceMean(x)

    net = Net(18)
    x = net.input("x", "batch", 8)
    assert isinstance(found(mean, net, net("ReduceMean", x, net.ints(-1))), Match)
    net = Net(18)
    x = net.input("x", "batch", 8)
    assert found(mean, net, net("ReduceMean", x, net.ids("axes", 1))) is None


# ---- misses ------------------------------------------------------------------------------


def test_an_interior_value_with_another_reader_is_a_miss() -> None:
    net, x = new()
    total = net("Add", x, net.weight(8))
    result = found(relu_of_sum, net, net("Relu", total), net("Exp", total))
    assert isinstance(result, Miss)
    assert result.reason == f"the result {total!r} of Add has other readers"


def test_an_interior_graph_output_is_a_miss() -> None:
    net, x = new()
    total = net("Add", x, net.weight(8))
    result = found(relu_of_sum, net, net("Relu", total), total)
    assert isinstance(result, Miss)
    assert result.reason == f"the result {total!r} of Add is a graph output"


def test_the_result_and_the_variables_may_have_other_readers() -> None:
    net, x = new()
    y = net("Relu", net("Add", x, net.weight(8)))
    assert isinstance(found(relu_of_sum, net, y, net("Exp", y), net("Exp", x)), Match)


def test_an_alternative_without_other_readers_is_preferred() -> None:
    def pattern(op: Any, x: Any) -> Any:
        return op.either(op.Neg(op.Exp(x)), op.Neg(x))

    net, x = new()
    e = net("Exp", x)
    result = found(pattern, net, net("Neg", e), e)
    assert isinstance(result, Match)
    assert result.values == {"x": e}


def test_a_variable_read_by_what_is_covered_is_not_covered() -> None:
    net, x = new()
    e = net("Exp", x)
    result = found(lambda op, v: op.Mul(v, op.Sigmoid(v)), net, net("Mul", e, net("Sigmoid", e)))
    assert isinstance(result, Match)
    assert [r.op for r in result.covered] == ["Mul", "Sigmoid"]


def test_matching_leaves_the_graph_alone() -> None:
    net, x = new()
    graph: TileGraph = net.graph(net("Relu", net("Add", x, net.weight(8))))
    before = [(r.id, r.operands, r.results) for r in graph.regions()]
    for region in graph.regions():
        match(relu_of_sum, graph, region)
    assert [(r.id, r.operands, r.results) for r in graph.regions()] == before


def test_one_of_several_operators_and_operands_behind_the_named_ones() -> None:
    def pattern(op: Any, x: Any) -> Any:
        return op.one_of(("Sum", "Concat"), op.Exp(x, label="inside"), ..., label="last")

    net, x = new()
    graph_of = {
        "Sum": net("Sum", net("Exp", x), x, x),
        "Concat": net("Concat", net("Exp", x), x, axis=1),
    }
    for op, y in graph_of.items():
        result = found(pattern, net, y)
        assert isinstance(result, Match) and result.values == {"x": x}
        assert (result.labels["last"].op, result.labels["inside"].op) == (op, "Exp")
    assert found(pattern, net, net("Mul", net("Exp", x), x)) is None
    only = found(lambda op, x: op.Sum(op.Exp(x)), net, graph_of["Sum"])
    assert only is None, "what follows is no constant, and nothing says that it may be there"


def test_a_pattern_ends_in_an_operator_whose_first_result_nobody_wants() -> None:
    net, x = new()
    _, index = net.many("TopK", 2, x, net.const(np.array([2]), np.int64))
    net.nodes[-1].output[0] = ""
    graph = net.graph(index)
    root = graph.producer(index)
    assert root is not None
    result = match(lambda op, x: op.TopK(x, ...), graph, root)
    assert isinstance(result, Match) and result.values == {"x": x}


# ---- rules as passes -------------------------------------------------------------------


def asked(rule: Rule, net: Net, *outputs: str) -> list[Proposal | Miss]:
    graph = net.graph(*outputs)
    root = graph.producer(outputs[0])
    assert root is not None
    return list(RulePass(rule).propose(graph, root))


def summed(op: Any, x: Any, y: Any) -> Any:
    return op.Add(op.Exp(x, label="exp"), y)


def as_relu(m: Match) -> Region:
    node = Node("relu", "Relu", (m.values["y"],), m.root.results)
    return Region("new", "Relu", (m.values["y"],), m.root.results, (node,))


def test_a_rule_tries_every_way_its_pattern_fits() -> None:
    """The first one that nothing speaks against."""
    net, x = new()
    a, b = net("Exp", x), net("Exp", net("Neg", x))
    y = net("Add", a, b)
    rule = Rule("r", (summed,), as_relu, lambda m: None if m.values["y"] == a else "no")
    (made,) = asked(rule, net, y)
    assert isinstance(made, Proposal) and made.new[0].operands == (a,)
    never = Rule("r", (summed,), as_relu, lambda m: f"not beside {m.values['y']}")
    (miss,) = asked(never, net, y)
    assert isinstance(miss, Miss) and miss.reason == f"not beside {b}"


def test_a_rule_that_refuses_needs_a_reason() -> None:
    net, x = new()
    e = net("Exp", x)
    y = net("Add", e, x)
    for rule in (Rule("r", (summed,), as_relu, lambda m: ""), Rule("r", (summed,), lambda m: ())):
        with pytest.raises(ValueError, match="without a reason"):
            asked(rule, net, y)
    (miss,) = asked(Rule("r", (summed,), as_relu), net, y, e)
    assert isinstance(miss, Miss) and "is a graph output" in miss.reason


def test_a_site_a_rule_is_not_for_is_no_matter_of_readers() -> None:
    net, x = new()
    e = net("Exp", x)
    rule = Rule("r", (summed,), as_relu, lambda m: unsuited_reason("it is something else"))
    (miss,) = asked(rule, net, net("Add", e, x), e)
    assert isinstance(miss, Miss) and miss.reason == "it is something else"


def test_what_a_rule_keeps_may_have_other_readers() -> None:
    net, x = new()
    e = net("Exp", x)
    rule = Rule("r", (summed,), as_relu, keeps=True)
    (made,) = asked(rule, net, net("Add", e, x), e)
    assert isinstance(made, Proposal) and [r.op for r in made.old] == ["Add", "Exp"]


def test_a_rewrite_says_what_is_new_and_what_it_covers() -> None:
    net, x = new()
    spec = TensorSpec(DType.F32, (8,))

    def rewrite(m: Match) -> Rewrite | str:
        return Rewrite((as_relu(m),), (m.root,), {"extra": spec}, step=True)

    (made,) = asked(Rule("r", (summed,), rewrite), net, net("Add", net("Exp", x), x))
    assert isinstance(made, Proposal) and made.step and made.specs == {"extra": spec}
    assert [r.op for r in made.old] == ["Add"] and made.rule == "r"
    (miss,) = asked(
        Rule("r", (summed,), lambda m: "found on the way"), net, net("Add", net("Exp", x), x)
    )
    assert isinstance(miss, Miss) and miss.reason == "found on the way"
