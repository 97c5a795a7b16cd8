"""Operations and bytes of nodes, by arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.samples import result
from tests.graphs import Net, normal
from tracea_graph.commands.op_statistics import NodeStats, OpStatistics, symbol_values
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.onnx_io.model_reader import load

BATCH, DEEP, WIDE = 5, 48, 32
IN, OUT, WEIGHT, BIAS = 4 * BATCH * DEEP, 4 * BATCH * WIDE, 4 * DEEP * WIDE, 4 * WIDE


@pytest.fixture
def fused(tmp_path: Path) -> OpStatistics:
    path = result(tmp_path)
    return OpStatistics(
        load(path, inline=True).graph, custom_op_nodes(load(path)), {"batch": BATCH}
    )


def known(work: NodeStats | None) -> NodeStats:
    assert work is not None
    return work


def test_a_program_walks_its_outside_values_once(fused: OpStatistics) -> None:
    work = known(fused.of("tracea_0_FusedGemm_ab", "FusedGemm_ab"))
    assert work.weights == WEIGHT + BIAS
    assert work.activations == IN + OUT


def test_apart_every_operator_walks_its_own(fused: OpStatistics) -> None:
    work = known(fused.of("tracea_0_FusedGemm_ab", "FusedGemm_ab"))
    assert work.unfused == (IN + WEIGHT + OUT) + (OUT + BIAS + OUT) + (OUT + OUT)


def test_unpacking_a_constant_is_free(fused: OpStatistics) -> None:
    """The Transpose and Reshape of the panels depend on no input."""
    work = known(fused.of("tracea_0_FusedGemm_ab", "FusedGemm_ab"))
    assert work.flops == pytest.approx(2 * BATCH * DEEP * WIDE, rel=0.05)
    assert work.size == f"{BATCH}×{WIDE}×{DEEP}"


def test_an_ordinary_operator_is_known_by_its_name(fused: OpStatistics) -> None:
    work = known(fused.of("/neg", "Neg"))
    assert (work.bytes, work.unfused) == (2 * OUT, 2 * OUT)


def test_what_the_model_does_not_know_has_no_work(fused: OpStatistics) -> None:
    assert fused.of("ReorderInput_token_3", "ReorderInput") is None


def test_unbound_symbols_leave_a_node_unknown(tmp_path: Path) -> None:
    path = result(tmp_path)
    statistics = OpStatistics(load(path, inline=True).graph, (), {})
    assert statistics.of("/neg", "Neg") is None


def test_a_fused_node_named_after_its_last_part_starts_at_its_operator() -> None:
    net = Net()
    x = net.input("x", 1, 8, 10, 10)
    y = net("Relu", net("Conv", x, net.const(normal(16, 8, 3, 3)), pads=[1, 1, 1, 1]))
    graph = net.graph(y)
    statistics = OpStatistics(graph, (), {})
    last = graph.regions()[-1].results[0]
    statistics._groups["/relu/Relu"] = [graph.regions()[-1]]
    work = known(statistics.of(f"/relu/Relu_output_0_nchwc_{last}"[:18], "Conv"))
    assert work.flops == pytest.approx(2 * 16 * 100 * 8 * 9, rel=0.01)
    assert work.size == "100×16×72"
    assert work.unfused - work.bytes == 2 * 4 * 16 * 100  # what lies between the two


def test_convolutions_count_their_groups() -> None:
    net = Net()
    x = net.input("x", 1, 8, 10, 10)
    graph = net.graph(net("Conv", x, net.const(normal(8, 1, 3, 3)), group=8))
    assert OpStatistics(graph, (), {}).flops == 2 * 8 * 64 * 9


def test_sizes_come_from_the_inputs() -> None:
    net = Net()
    graph = net.graph(net("Relu", net.input("x", "batch", "seq", 4)))
    assert symbol_values(graph, {"x": normal(3, 7, 4)}) == {"batch": 3, "seq": 7}
