"""Every elementwise operator ONNX has is read as the step it is, or left alone with reason."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tests.graphs import Net, assert_same, evaluate, normal, only, ops, optimized, schedule_only
from tracea_graph.ir import DType
from tracea_graph.ops.elementwise_steps import ELEMENTARY, OPERATORS, UNARY
from tracea_graph.ops.operator_iteration_spaces import COSTS
from tracea_graph.passes.layout.axis_selection import BY_ELEMENT
from tracea_graph.passes.pointwise import elementwise, read_elementwise

LIFT = elementwise.ElementwiseOp()
Write = Callable[[Net, str], str]

SPELLED: dict[str, tuple[Write, str]] = {
    **{
        op: (lambda n, x, op=op: n(op, x), f"full|{step}|1")
        for op, step in {
            "Sign": "sign(0)", "Floor": "floor(0)", "Ceil": "ceil(0)", "Round": "round(0)",
            "Sin": "sin(0)", "Cos": "cos(0)", "Softplus": "softplus(0)", "IsNaN": "is_nan(0)",
            "Softsign": "softsign(0)", "HardSwish": "hard_swish(0)", "Mish": "mish(0)",
            "LeakyRelu": "leaky_relu(0,0.01)", "Elu": "elu(0,1.0)", "Celu": "celu(0,1.0)",
            "Selu": "selu(0,1.6732631921768188,1.0507010221481323)", "IsInf": "is_inf(0)",
            "HardSigmoid": "hard_sigmoid(0,0.2,0.5)",
            "ThresholdedRelu": "thresholded_relu(0,1.0)",
        }.items()
    },
    "LeakyRelu(-1/2)": (lambda n, x: n("LeakyRelu", x, alpha=-0.5), "full|leaky_relu(0,-0.5)|1"),
    "HardSigmoid(1/4, 1)": (
        lambda n, x: n("HardSigmoid", x, alpha=0.25, beta=1.0), "full|hard_sigmoid(0,0.25,1.0)|1"
    ),
    "Clip": (lambda n, x: n("Clip", x, -0.5, 0.5), "full|clip(0,-0.5,0.5)|1"),
    "Clip above": (
        lambda n, x: n("Clip", x, "", 0.5), "full|clip(0,-3.4028234663852886e+38,0.5)|1"
    ),
    "Clip by an operand": (
        lambda n, x: n("Clip", x, n.input("low"), 0.5), "full,scalar|clip(0,1,0.5)|2"
    ),
    "IsInf +": (lambda n, x: n("IsInf", x, detect_negative=0), "full|equal(0,inf)|1"),
    "IsInf -": (lambda n, x: n("IsInf", x, detect_positive=0), "full|equal(0,-inf)|1"),
    "Clip crossed": (lambda n, x: n("Clip", x, 1.0, -1.0), "full|clip(0,1.0,-1.0)|1"),
    "PRelu by channel": (
        lambda n, x: n("PRelu", x, n.const([0.1, -0.2, 0.3, 0.4])), "full,row|prelu(0,1)|2"
    ),
    "PRelu by row": (
        lambda n, x: n("PRelu", x, n.input("s", "seq", 1)), "full,col|prelu(0,1)|2"
    ),
    "PRelu by number": (lambda n, x: n("PRelu", x, n.const([0.5])), "full|prelu(0,0.5)|1"),
    "Pow 2": (lambda n, x: n("Pow", x, 2.0), "full|mul(0,0)|1"),
    "Pow of int64": (lambda n, x: n("Pow", x, n.const(3, np.int64)), "full|pow(0,3.0)|1"),
    "Pow -1/2": (lambda n, x: n("Pow", n("Abs", x), -0.5), "full|pow(0,-0.5)|1"),
    "Pow x": (lambda n, x: n("Pow", 2.0, x), "full|pow(2.0,0)|1"),
    "Pow x^x": (lambda n, x: n("Pow", n("Abs", x), x), "full,full|pow(0,1)|2"),
    "Sum of 3": (lambda n, x: n("Sum", x, 1.0, x), "full|add(0,1.0);add(1,0)|2"),
    "Mean of 4": (
        lambda n, x: n("Mean", x, x, 2.0, x), "full|add(0,0);add(1,2.0);add(2,0);mul(3,0.25)|4"
    ),
    "Max of 3": (lambda n, x: n("Max", x, n("Neg", x), 0.5), "full,full|max(0,1);max(2,0.5)|3"),
    "Min of 2": (lambda n, x: n("Min", x, 0.5), "full|min(0,0.5)|1"),
    "Less": (lambda n, x: n("Less", x, 0.5), "full|less(0,0.5)|1"),
    "Greater": (lambda n, x: n("Greater", x, 0.5), "full|less(0.5,0)|1"),
    "GreaterOrEqual": (lambda n, x: n("GreaterOrEqual", x, 0.5), "full|less_equal(0.5,0)|1"),
    "Equal": (lambda n, x: n("Equal", x, n.weight(4)), "full,row|equal(0,1)|2"),
    "Where": (
        lambda n, x: n("Where", n.input("m", "seq", 1, dtype=DType.BOOL), x, -4.0),
        "col:bool,full|where(0,1,-4.0)|2",
    ),
    "Cast to bool": (lambda n, x: n("Cast", x, to=9), "full|nonzero(0)|1"),
    "Cast of bool": (
        lambda n, x: n("Cast", n.input("m", "seq", 1, dtype=DType.BOOL), to=1),
        "full:bool|number(0)|1",
    ),
    "Cast of int64": (lambda n, x: n("Cast", n.ids("i", 7), to=1), "full:i64||0"),
    "Cast to int64": (lambda n, x: n("Cast", x, to=7), "full|int64(0)|1:i64"),
    "Cast to int32": (lambda n, x: n("Cast", x, to=6), "full|int32(0)|1:i32"),
    "Cast of int64 to bool": (
        lambda n, x: n("Cast", n.ids("i", 7), to=9), "full:i64|nonzero(0)|1"
    ),
    "Cast of bool to int64": (
        lambda n, x: n("Cast", n.input("m", "seq", 1, dtype=DType.BOOL), to=7),
        "full:bool|number(0)|1:i64",
    ),
    "QuantizeLinear": (
        lambda n, x: n("QuantizeLinear", x, 0.02, n.const(128, np.uint8)),
        "full|div(0,0.019999999552965164);round(1);add(2,128.0);saturate(3,0.0,255.0)|4:u8",
    ),
    "QuantizeLinear, signed": (
        lambda n, x: n("QuantizeLinear", x, 0.03, n.const(-3, np.int8)),
        "full|div(0,0.029999999329447746);round(1);add(2,-3.0);saturate(3,-128.0,127.0)|4:i8",
    ),
    "DequantizeLinear": (
        lambda n, x: n(
            "DequantizeLinear", n.input("q", 9, dtype=DType.U8), 0.5, n.const(128, np.uint8)
        ),
        "full:u8|sub(0,128.0);mul(1,0.5)|2",
    ),
    "Cast of int32": (
        lambda n, x: n("Cast", n.input("j", 7, dtype=DType.I32), to=1), "full:i32||0"
    ),
}  # fmt: skip

FEEDS = {
    "x": 2 * normal(2, 5, 4),
    "m": normal(5, 1) > 0,
    "s": normal(5, 1),
    "low": np.array(-0.25, np.float32),
    "i": np.arange(-3, 4) * 10**12,
    "j": np.arange(-3, 4, dtype=np.int32),
    "q": np.arange(0, 252, 28, dtype=np.uint8),
}


@pytest.mark.parametrize("name", SPELLED)
def test_an_operator_is_its_step(name: str) -> None:
    write, text = SPELLED[name]
    net = Net(20)
    y = write(net, net.input("x", "batch", "seq", 4))
    graph = net.graph(y)
    producer = graph.producer(y)
    assert producer is not None
    spelled = elementwise.read_chain(graph, producer)
    assert spelled is not None and spelled[0].text == text
    schedule_only(graph, LIFT)
    assert set(ops(graph)) == {"FusedElementwise"}
    assert_same(net, graph, {n: FEEDS[n] for n in net.inputs}, 2e-6)


EDGES = np.array(
    [np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e30, -1e30,
     1e-40, -1e-40, 2.0**31, -(2.0**31), 3e9, -3e9, 2.0**63, -(2.0**63)],
    np.float32,
)  # fmt: skip


@pytest.mark.parametrize("name", SPELLED)
def test_edges_are_those_of_the_runtime(name: str) -> None:
    """NaN, infinities, halves and what no integer holds give exactly what ONNX Runtime gives."""
    net = Net(20)
    y = SPELLED[name][0](net, net.input("x", 2, "seq", 4))
    graph = net.graph(y)
    schedule_only(graph, LIFT)
    feeds = FEEDS | {"x": np.resize(EDGES, (2, 5, 4))}
    feeds = {n: feeds[n] for n in net.inputs}
    with np.errstate(all="ignore"):
        actual, expected = evaluate(graph, feeds)[0], net.run(feeds)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)


def test_clip_before_opset_11_has_attributes() -> None:
    net = Net(10)
    graph = net.graph(net("Clip", net.input("x", 3, 4), min=-0.5, max=0.25))
    schedule_only(graph, LIFT)
    region = only(graph, "FusedElementwise")
    assert region.params.chain.text == "full|clip(0,-0.5,0.25)|1"
    (node,) = region.params.body(10).nodes
    assert (node.op, dict(node.attrs)) == ("Clip", {"min": -0.5, "max": 0.25})
    assert_same(net, graph, {"x": normal(3, 4)})


LEFT: dict[str, Write] = {
    "a NaN bound": lambda n, x: n("Clip", x, np.float32(np.nan) * np.ones((), np.float32)),
    "a comparison of integers": lambda n, x: n("Equal", n.ids("i", 7), n.ints(2)),
    "a choice of integers": lambda n, x: n(
        "Where", n.input("m", 7, dtype=DType.BOOL), n.ids("i", 7), n.ints(0)
    ),
    "no sign of infinity": lambda n, x: n("IsInf", x, detect_negative=0, detect_positive=0),
    "a cast to bytes": lambda n, x: n("Cast", x, to=2),
    "a cast between integers": lambda n, x: n("Cast", n.ids("i", 7), to=6),
    "a scale per channel": lambda n, x: n(
        "QuantizeLinear", x, n.const(np.full(7, 0.1)), n.const(np.zeros(7), np.uint8)
    ),
    "a cast to float64": lambda n, x: n("Cast", x, to=11),
    "the sum of one": lambda n, x: n("Sum", x),
}


@pytest.mark.parametrize("name", LEFT)
def test_an_operator_that_is_no_step_stays(name: str) -> None:
    net = Net(20)
    graph = net.graph(LEFT[name](net, net.input("x", 3, 7)))
    schedule_only(graph, LIFT)
    assert "FusedElementwise" not in ops(graph)


# ---- chains of them ----------------------------------------------------------------------


def fused(write: Write, *dims: int | str) -> str:
    """The text of the one chain a graph over x becomes; its answers are the original's."""
    net = Net(20)
    graph = net.graph(write(net, net.input("x", *dims)))
    optimized(graph)
    text: str = only(graph, "FusedElementwise").params.chain.text
    assert ops(graph) == ["FusedElementwise"]
    shapes = {"batch": 2, "seq": 5}
    feeds = {
        name: normal(*(shapes.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim))
        for name, v in net.inputs.items()
    }
    if "m" in feeds:
        feeds["m"] = feeds["m"] > 0  # type: ignore[assignment]
    assert_same(net, graph, feeds, 3e-6)
    return text


def test_a_comparison_lives_inside_a_chain() -> None:
    def write(net: Net, x: str) -> str:
        positive = net("Not", net("LessOrEqual", x, 0.0))
        both = net("And", positive, net("Less", x, 1.0))
        return net("Where", both, net("Mul", x, 2.0), net("Neg", x))

    steps = fused(write, "batch", "seq", 8).split("|")[1].split(";")
    assert sorted(step.split("(")[0] for step in steps) == [
        "and", "less", "less_equal", "mul", "neg", "not", "where",
    ]  # fmt: skip


def test_a_boolean_mask_is_an_operand() -> None:
    def write(net: Net, x: str) -> str:
        mask = net.input("m", "seq", "seq", dtype=DType.BOOL)
        return net("Where", mask, net("Mul", x, 0.125), -1e4)

    text = fused(write, "batch", 3, "seq", "seq")
    assert text == "full,full:bool|mul(0,0.125);where(1,2,-10000.0)|3"


def test_a_cast_mask_becomes_an_additive_one() -> None:
    def write(net: Net, x: str) -> str:
        keep = net("Cast", net.input("m", "batch", "seq", dtype=DType.BOOL), to=1)
        return net("Add", x, net("Mul", net("Sub", 1.0, keep), -1e4))

    net = Net(20)
    graph = net.graph(write(net, net.input("x", "batch", "seq")))
    optimized(graph)
    assert ops(graph) == ["FusedElementwise"]
    assert_same(net, graph, {"x": normal(2, 5), "m": normal(2, 5, seed=1) > 0})


@pytest.mark.parametrize(
    ("gate", "step"), [("Sigmoid", "silu"), ("Gelu", "gelu")], ids=["SwiGLU", "GeGLU"]
)
def test_gating_is_one_chain(gate: str, step: str) -> None:
    def write(net: Net, x: str) -> str:
        up = net.input("up", "batch", "seq", 8)
        opened = net("Mul", x, net("Sigmoid", x)) if gate == "Sigmoid" else net("Gelu", x)
        return net("Mul", opened, up)

    assert fused(write, "batch", "seq", 8) == f"full,full|{step}(0);mul(2,1)|3"


def test_a_squeeze_excite_scale_is_one_chain() -> None:
    """HardSigmoid of a column, times the image, clipped."""

    def write(net: Net, x: str) -> str:
        gate = net.input("gate", "batch", 3, 1, 1)
        return net("Clip", net("Mul", x, gate), 0.0, 6.0)

    assert fused(write, "batch", 3, 7, 7).endswith("|mul(0,1);clip(2,0.0,6.0)|3")


def test_a_value_goes_through_integers_inside_a_chain() -> None:
    """Quantised and back, truncated and back: no integer is stored."""

    def write(net: Net, x: str) -> str:
        scale, zero = net.const(0.05), net.const(128, np.uint8)
        q = net("QuantizeLinear", net("Relu", x), scale, zero)
        y = net("DequantizeLinear", q, scale, zero)
        return net("Add", y, net("Cast", net("Cast", net("Mul", x, 3.0), to=7), to=1))

    steps = fused(write, "batch", "seq", 8).split("|")[1]
    assert [s.split("(")[0] for s in steps.split(";")].count("int64") == 1


def test_a_step_that_onnx_has_an_operator_for_is_read_from_it() -> None:
    """By the operator its record names, or by a reader of its own."""
    known = {s.name.lower(): s.name for s in onnx.defs.get_all_schemas() if not s.domain}
    del known["nonzero"]  # gives places
    special = {*read_elementwise._READERS, *read_elementwise._REPEATED, *read_elementwise._SWAPPED}
    special |= {"Gelu"}  # a rule of ``recognise``: its attribute says which of two steps it is
    for step, record in ELEMENTARY.items():
        operator = known.get(step.replace("_", ""))
        if operator is not None:
            assert record.operator == operator or operator in special, step
        assert len(record.defaults) <= record.literals


def test_what_is_known_of_an_operator_follows_from_its_step() -> None:
    assert {"Add", "HardSwish", "LessOrEqual", "Where"} <= OPERATORS.keys()
    assert {"Exp", "Selu", "Mish"} <= UNARY and not UNARY & {"PRelu", "IsNaN", "Not", "Add"}
    assert COSTS.keys() >= OPERATORS.keys() and OPERATORS.keys() <= BY_ELEMENT
