"""Numbers that count along axes: what is read as such, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tests.graphs import Net, assert_same, loaded, normal, only, ops, optimized, schedule_only
from tracea_graph.ir import DType
from tracea_graph.ops.iota import IotaParams
from tracea_graph.passes.layout.iota import Iota

FEEDS = {"x": normal(2, 3, 5, 7)}


def new(opset: int = 17) -> tuple[Net, str]:
    net = Net(opset)
    return net, net.input("x", "n", 3, "h", "w")


def size(net: Net, value: str, axis: int) -> str:
    return net("Gather", net("Shape", value), net.const(axis, np.int64))


def counted(net: Net, value: str, axis: int, floats: bool = True) -> str:
    """0, 1, 2 … along an axis, as torch writes it for either type."""
    zero, one = (net.const(i, np.float32 if floats else np.int64) for i in (0, 1))
    length = size(net, value, axis)
    if floats:
        return net("Range", zero, net("Cast", length, to=DType.F32.onnx), one)
    return net("Cast", net("Range", zero, length, one), to=DType.F32.onnx)


def meshed(net: Net, rows: str, columns: str) -> tuple[str, str]:
    """torch.meshgrid, indexing by rows."""
    target = net("Concat", net("Shape", rows), net("Shape", columns), axis=0)
    shape = net("Concat", net("Shape", rows), net.ints(1), axis=0)
    down = net("Expand", net("Reshape", rows, shape), target)
    return down, net("Expand", net("Reshape", columns, net.ints(1, -1)), target)


def lifted(net: Net, *values: str) -> list[Any]:
    """What is left, after all of it is checked: everything is a grid."""
    graph = loaded(net, *values)
    schedule_only(graph, Iota())
    graph.prune()
    assert_same(net, graph, FEEDS)
    assert set(ops(graph)) == {"FusedIota"}, ops(graph)
    return [graph.producer(v).params for v in values]


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("floats", [True, False])
def test_centres_of_cells(floats: bool, opset: int) -> None:
    net, x = new(opset)
    y = net("Add", net("Mul", net("Add", counted(net, x, 2, floats), 0.5), 8.0), -4.0)
    assert lifted(net, y) == [IotaParams(1, ("0.2",), 0.0, (8.0,))]


def test_positions_that_are_looked_up() -> None:
    """Integers are converted where an op of ours reads them, and nowhere else."""
    net = Net()
    ids = net.ids("ids", "n", "s")
    zero, one = (net.const(i, np.int64) for i in (0, 1))
    places = net("Range", zero, size(net, ids, 1), one)
    tables = net("Gather", net.weight(50, 16), ids), net("Gather", net.weight(9, 16), places)
    graph = loaded(net, net("Add", *tables))
    optimized(graph)
    assert set(ops(graph)) == {"FusedIota", "FusedEmbedding"}
    iota = only(graph, "FusedIota")
    assert iota.params == IotaParams(1, ("0.1",), 0.0, (1.0,), DType.I64)
    alone = loaded(net, places)
    schedule_only(alone, Iota())
    assert "FusedIota" not in ops(alone)


def test_grids_of_rows_and_columns() -> None:
    net, x = new()
    half = [net("Add", counted(net, x, axis), 0.5) for axis in (2, 3)]
    down, across = meshed(net, *half)
    assert lifted(net, down, across) == [
        IotaParams(1, ("0.2", "0.3"), 0.5, (1.0, 0.0)),
        IotaParams(1, ("0.2", "0.3"), 0.5, (0.0, 1.0)),
    ]


def test_one_number_as_often_as_there_are_cells() -> None:
    net, x = new()
    cells = net("Unsqueeze", net("Mul", size(net, x, 2), size(net, x, 3)), net.ints(0))
    shape = net("Concat", net.ints(1), cells, axis=0)
    y = net("ConstantOfShape", shape, value=numpy_helper.from_array(np.array([16.0], np.float32)))
    (params,) = lifted(net, y)
    assert (params.start, params.steps) == (16.0, (0.0, 0.0))
    net, x = new()
    z = net("Expand", 3.0, net("Shape", x))
    assert lifted(net, z) == [IotaParams(1, ("0.0", 3, "0.2", "0.3"), 3.0, (0.0,) * 4)]


def test_one_number_is_the_same_in_any_shape() -> None:
    net, x = new()
    y = net("Reshape", net("Expand", 3.0, net("Shape", x)), net.ints(0, -1))
    (params,) = lifted(net, y)
    assert params.steps == (0.0, 0.0)


def test_axes_of_one_come_and_go() -> None:
    net, x = new()
    y = net("Unsqueeze", counted(net, x, 3), net.ints(0, 2))
    y = net("Transpose", net("Sub", 1.0, net("Squeeze", y, net.ints(2))), perm=[1, 0])
    assert lifted(net, y) == [IotaParams(1, ("0.3", 1), 1.0, (-1.0, 0.0))]


def test_sizes_of_integers_and_of_several_values() -> None:
    net = Net()
    ids, x = net.ids("ids", "batch", "tokens"), net.input("x", "n", 4)
    rows, columns = counted(net, ids, 1, floats=False), counted(net, x, 0)
    graph = loaded(net, meshed(net, rows, columns)[0])
    schedule_only(graph, Iota())
    graph.prune()
    assert ops(graph) == ["FusedIota"] and set(only(graph, "FusedIota").operands) == {"ids", "x"}
    assert_same(net, graph, {"ids": np.ones((2, 6), np.int64), "x": normal(5, 4)})


def _third(net: Net, x: str) -> str:
    return net("Mul", counted(net, x, 2), 1 / 3)


def _cut_off(net: Net, x: str) -> str:
    whole = net("Cast", net("Mul", counted(net, x, 2), 0.5), to=DType.I64.onnx)
    return net("Cast", whole, to=DType.F32.onnx)


def _square(net: Net, x: str) -> str:
    return net("Mul", counted(net, x, 2), counted(net, x, 2))


def _by_two(net: Net, x: str) -> str:
    length = net("Cast", size(net, x, 2), to=DType.F32.onnx)
    return net("Range", 0.0, length, 2.0)


def _shorter(net: Net, x: str) -> str:
    """One with more rows than there are would be empty."""
    length = net("Sub", size(net, x, 2), net.const(3, np.int64))
    return net("Range", 0.0, net("Cast", length, to=DType.F32.onnx), 1.0)


@pytest.mark.parametrize("write", [_third, _cut_off, _square, _by_two, _shorter])
def test_what_is_not_exact_or_not_linear_stays(write: Any) -> None:
    net, x = new()
    value = write(net, x)
    graph = loaded(net, value)
    schedule_only(graph, Iota())
    assert graph.producer(value).op != "FusedIota"
    assert_same(net, graph, FEEDS)


def test_constants_and_older_operators_stay() -> None:
    net = Net(9)
    graph = loaded(net, net("ConstantOfShape", net("Shape", net.input("x", "n"))))
    schedule_only(graph, Iota())
    assert "FusedIota" not in ops(graph)
    net = Net()
    graph = loaded(net, net("ConstantOfShape", net.ints(2, 3)))
    schedule_only(graph, Iota())
    assert ops(graph) == ["ConstantOfShape"]


def test_cells_are_decoded_where_they_are_found() -> None:
    """A convolution and the places of its cells are one program, which knows all sizes itself."""
    net, x = new()
    maps = net("Conv", x, net.weight(2, 3, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    half = [net("Add", counted(net, maps, axis), 0.5) for axis in (2, 3)]
    down, across = meshed(net, *half)
    places = net("Concat", *(net("Unsqueeze", g, net.ints(0)) for g in (across, down)), axis=0)
    graph = loaded(net, net("Mul", net("Add", maps, places), 8.0))
    optimized(graph)
    assert ops(graph) == ["FusedRegion"]
    assert_same(net, graph, FEEDS)
