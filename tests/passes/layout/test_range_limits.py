"""Ranges as long as gathered pages have rows read the dimension of the table, not of the pages."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graphs import Net, assert_same, loaded, normal, schedule_only
from tracea_graph.ir import DType
from tracea_graph.passes.layout.range_limits import RangeLimit


def counted(net: Net, start: int = 0, times: int = 16) -> tuple[str, str]:
    """Rows of pages, and their numbers."""
    pool = net.input("pool", "pages", times, 8)
    table = net.input("table", "batch", "listed", dtype=DType.I64)
    rows = net("Reshape", net("Gather", pool, table, axis=0), net.ints(0, -1, 8))
    size = net("Gather", net("Shape", net("Neg", rows)), net.const(1, np.int64))
    count = net("Range", net.const(start, np.int64), size, net.const(1, np.int64))
    return net("Relu", rows), net("Cast", count, to=DType.F32.onnx)


@pytest.mark.parametrize("times", [16, 24])
def test_a_limit_is_read_from_the_table(times: int) -> None:
    net = Net()
    graph = loaded(net, *counted(net, times=times))
    trace = schedule_only(graph, RangeLimit())
    assert trace.applied()["range-limit"] == 1, trace.misses()
    (count,) = [r for r in graph.regions() if r.op == "Range"]
    shape = graph.producer(
        graph.producer(graph.producer(count.operands[1]).operands[0]).operands[0]
    )
    assert shape.operands == ("table",)
    feeds = {"pool": normal(7, times, 8), "table": np.array([[3, 0, 6], [6, 6, -1]])}
    assert_same(net, graph, feeds)


def test_a_range_from_another_start_stays() -> None:
    net = Net()
    graph = loaded(net, *counted(net, start=3))
    trace = schedule_only(graph, RangeLimit())
    assert not trace.applied()


def test_a_table_that_may_broadcast_is_not_read() -> None:
    net = Net()
    graph = loaded(net, *counted(net))
    graph.loose = {"listed": frozenset({frozenset({"table"})})}
    assert not schedule_only(graph, RangeLimit()).applied()


def test_a_range_over_an_input_stays() -> None:
    net = Net()
    x = net.input("x", "batch", 8)
    size = net("Gather", net("Shape", x), net.const(0, np.int64))
    size = net("Mul", size, net.const(4, np.int64))
    count = net("Range", net.const(0, np.int64), size, net.const(1, np.int64))
    graph = loaded(net, net("Cast", count, to=DType.F32.onnx))
    assert not schedule_only(graph, RangeLimit()).applied()
