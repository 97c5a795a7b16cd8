"""The cost model's units, and that more work or a slower machine never costs less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.graphs import Net, optimized
from tests.processors import flags_of
from tracea_graph.config import Environment
from tracea_graph.hardware import CpuProfile, Measurements
from tracea_graph.hardware.machine_measurements import Bandwidth, Peak
from tracea_graph.ir import DType, Node, TensorSpec
from tracea_graph.kernels.cpu.core_measurement import assumed_figures
from tracea_graph.kernels.cpu.filters import LAYOUTS
from tracea_graph.kernels.cpu.machine_model import machine_of, measured_machine
from tracea_graph.kernels.cpu.panels import INT16, PANELS, VNNI2
from tracea_graph.ops import OPS
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.weight_layouts import WeightLayout
from tracea_graph.policy import CostModel, Machine
from tracea_graph.policy.cost_coefficients import Coefficients, packaged_coefficients
from tracea_graph.policy.ort_cost import ort_cost, vector_instructions
from tracea_graph.ttg import Region, TileGraph

MACHINE = Machine(
    gflops=100.0, l2_gbytes=80.0, l3_gbytes=40.0, dram_gbytes=10.0,
    l2_bytes=1 << 20, l3_bytes=16 << 20, node_us=0.5,
)  # fmt: skip
CPU = CpuProfile("Test CPU", flags_of("avx512"), 4, 4, 32 << 10, 1 << 20, 16 << 20)
FIGURES = Measurements(
    (Peak("f32", "scalar", 8.0), Peak("f32", "avx2", 64.0), Peak("f32", "avx512", 128.0)),
    Bandwidth(400.0, 200.0, 100.0, 20.0, 40.0),
    ghz=4.0,
)


def product(k: int = 256, n: int = 256) -> TileGraph:
    net = Net()
    return net.graph(net("MatMul", net.input("x", "batch", "seq", k), net.weight(k, n)))


def chain(op: str) -> TileGraph:
    net = Net()
    return net.graph(net(op, net.input("x", "batch", "seq", 256)))


def cost(graph: TileGraph, machine: Machine = MACHINE, seq: int = 128) -> float:
    """µs of all regions."""
    model = CostModel(machine, {"batch": 1, "seq": seq})
    return sum(model(graph, region) for region in graph.regions())


@pytest.mark.parametrize("op", ["Attention", "MultiHeadAttention", "GroupQueryAttention"])
def test_attention_in_one_operator_costs_more_than_its_products_at_the_peak(op: str) -> None:
    net = Net(23)
    domain = {} if op == "Attention" else {"domain": "com.microsoft"}
    heads = {"Attention": ("q_num_heads", "kv_num_heads"), "MultiHeadAttention": ("num_heads",),
             "GroupQueryAttention": ("num_heads", "kv_num_heads")}[op]  # fmt: skip
    more = [net.input("n", 1, dtype=DType.I32), net.input("t", 1, dtype=DType.I32)]
    qkv = [net.input(x, "batch", "seq", 256) for x in "qkv"]
    qkv += ["", "", *more] if op == "GroupQueryAttention" else []
    graph = net.graph(net(op, *qkv, **dict.fromkeys(heads, 4), **domain))
    assert cost(graph, seq=512) > 4 * 512 * 512 * 256 / MACHINE.gflops * 1e-3


# ---- units -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [VNNI2, INT16], ids=["vnni2", "int16"])
def test_two_numbers_at_once_halve_a_product(layout: WeightLayout) -> None:
    def work(layout: WeightLayout) -> float:
        params = GemmParams(256, 256, layout=layout)
        return params.cost(packaged_coefficients(), [(128, 256)], (128, 256)).product

    assert 0.4 < work(layout) / work(PANELS) < 0.6


@pytest.mark.parametrize(("cap", "tiles"), [(None, True), ("amxbf16", True), ("avx512", False)])
def test_matrix_tiles_are_known_unless_capped(cap: str | None, tiles: bool) -> None:
    assert machine_of(replace(CPU, flags=flags_of("amxbf16")), FIGURES, cap).tiles == tiles
    assert not machine_of(CPU, FIGURES, cap).tiles


def test_matrix_tiles_prefer_direct_convolutions() -> None:
    """Winograd's transform saves products, which cost little there."""

    def work(layout: str, tables: Coefficients) -> float:
        window = ConvWindow((3, 3), (1, 1), (1, 1), (1,) * 4)
        params = ConvParams(256, 256, window, layout=LAYOUTS[layout])
        dims = [(1.0, 256.0, 14.0, 14.0)]
        return params.cost(tables, dims, (1.0, 256.0, 14.0, 14.0)).product

    plain, tiles = packaged_coefficients(), packaged_coefficients().on_matrix_unit()
    assert work("winograd2_vnni2", plain) < work("vnni2", plain)
    assert work("vnni2", tiles) < work("winograd2_vnni2", tiles)
    assert work("vnni2", tiles) < work("vnni2", plain)


def test_a_large_product_takes_its_flops_at_the_peak() -> None:
    flops, rows = 2 * 4096 * 256 * 256, 4096
    at_peak = flops / (MACHINE.gflops * 1e9) * 1e6
    assert at_peak < cost(product(), seq=rows) < 1.5 * at_peak


def test_merged_products_take_the_flops_of_all_their_columns() -> None:
    """They are no faster than their arithmetic, and save what reading x twice more takes."""
    net = Net()
    x = net.input("x", "batch", "seq", 256)
    apart = net.graph(*(net("MatMul", x, net.weight(256, 256)) for _ in range(3)))
    merged = apart.copy()
    optimized(merged)
    assert {len(r.results) for r in merged.regions()} == {3}
    at_peak = 3 * 2 * 4096 * 256 * 256 / (MACHINE.gflops * 1e9) * 1e6
    assert at_peak < cost(merged, seq=4096) < cost(apart, seq=4096)


def test_a_product_of_one_row_takes_its_weights_from_memory() -> None:
    weights = 256 * 256 * 4 / (MACHINE.dram_gbytes * 1e9) * 1e6
    assert weights < cost(product(), seq=1) < 1.2 * weights


def test_a_cheap_operator_takes_its_traffic() -> None:
    size = 4096 * 256 * 4  # read once, written twice
    traffic = 3 * size / (MACHINE.l3_gbytes * 1e9) * 1e6
    assert traffic < cost(chain("Relu"), seq=4096) < 2 * traffic


def test_a_reshape_costs_a_node_and_nothing_else() -> None:
    net = Net()
    graph = net.graph(net("Reshape", net.input("x", "batch", "seq", 64), net.ints(0, -1)))
    assert cost(graph) == MACHINE.node_us


def test_a_gather_does_not_read_its_whole_table() -> None:
    def gather(rows: int) -> TileGraph:
        net = Net()
        return net.graph(net("Gather", net.weight(rows, 64), net.ids("ids", "batch", "seq")))

    assert cost(gather(2000)) == cost(gather(1000)) > cost(gather(2))


def test_one_look_up_in_two_tables_is_cheaper_than_two_and_a_sum() -> None:
    net = Net()
    words = net("Gather", net.weight(3000, 256), net.ids("ids", "batch", "seq"))
    kinds = net("Gather", net.weight(3000, 256), net.ids("kinds", "batch", "seq"))
    graph = net.graph(net("Add", words, kinds))
    before = cost(graph)
    optimized(graph)
    assert [r.op for r in graph.regions()] == ["FusedEmbedding"]
    rows = 2 * 128 * 256 * 4 / (MACHINE.dram_gbytes * 1e9) * 1e6
    assert rows < cost(graph) < before


# ---- monotonicity ----------------------------------------------------------------------


@pytest.mark.parametrize("graph", [product(), chain("Relu"), chain("Erf")])
def test_more_rows_cost_more(graph: TileGraph) -> None:
    times = [cost(graph, seq=seq) for seq in (1, 16, 128, 1024, 8192, 65536)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_more_depth_and_more_columns_cost_more() -> None:
    assert cost(product(256, 256)) < cost(product(512, 256))
    assert cost(product(256, 256)) < cost(product(256, 512))


def test_a_transcendental_costs_more_than_a_maximum() -> None:
    assert cost(chain("Relu")) < cost(chain("Erf"))


@pytest.mark.parametrize("part", ["gflops", "l2_gbytes", "l3_gbytes", "dram_gbytes"])
@pytest.mark.parametrize("graph", [product(), chain("Erf")])
def test_a_faster_machine_never_costs_more(part: str, graph: TileGraph) -> None:
    better = replace(MACHINE, **{part: 2 * getattr(MACHINE, part)})
    for seq in (1, 128, 65536):
        assert cost(graph, better, seq) <= cost(graph, seq=seq)


def test_fusing_a_chain_saves_its_traffic() -> None:
    net = Net()
    y = net.input("x", "batch", "seq", 256)
    for _ in range(4):
        y = net("Relu", net("Add", y, 1.0))
    graph = net.graph(y)
    before = cost(graph)
    optimized(graph)
    assert len(graph.regions()) == 1
    assert cost(graph) < before / 3


# ---- machines --------------------------------------------------------------------------


def test_a_machine_is_what_was_measured() -> None:
    found = machine_of(CPU, FIGURES)
    assert (found.gflops, found.l2_gbytes, found.dram_gbytes) == (128.0, 200.0, 20.0)
    assert (found.l2_bytes, found.l3_bytes) == (CPU.l2, CPU.l3)


@pytest.mark.parametrize(("level", "gflops"), [("scalar", 8.0), ("avx2", 64.0), ("avx512", 128.0)])
def test_a_cap_takes_the_peak_of_its_level(level: str, gflops: float) -> None:
    assert machine_of(CPU, FIGURES, level).gflops == gflops


def test_a_level_that_was_not_measured_counts_as_the_next_slower() -> None:
    found = machine_of(CPU, replace(FIGURES, bandwidth=Bandwidth(l1=400.0, dram=20.0)))
    assert found.l2_gbytes == found.l3_gbytes == found.dram_gbytes == 20.0


def test_nothing_measured_still_makes_a_machine() -> None:
    nothing = replace(FIGURES, peaks=(), bandwidth=Bandwidth())
    found = machine_of(CPU, nothing)
    assert found.gflops == assumed_figures(CPU).peak("f32", "avx512")
    assert found.dram_gbytes == assumed_figures(CPU).bandwidth.dram


def test_farther_levels_serve_larger_tensors() -> None:
    served = [MACHINE.gbytes(size) for size in (1, 1 << 17, (1 << 17) + 1, 8 << 20, 9 << 20)]
    assert served == [80.0, 80.0, 40.0, 40.0, 10.0]


def test_without_a_compiler_a_machine_is_derived(tmp_path: Path) -> None:
    environment = Environment(cache=tmp_path, compiler="/nonexistent/cxx", level="scalar")
    found = measured_machine(environment)
    assert found.gflops > 0
    assert found.gflops < measured_machine(replace(environment, level=None)).gflops


@pytest.mark.parametrize("wrong", [{"gflops": 0.0}, {"dram_gbytes": -1.0}, {"l2_bytes": -1}])
def test_impossible_machines_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Machine(**wrong)  # type: ignore[arg-type]


# ---- operators of ONNX Runtime ---------------------------------------------------------


def test_a_reduction_costs_what_it_reads() -> None:
    net = Net()
    graph = net.graph(net("ReduceMean", net.input("x", "batch", "seq", 4096), axes=(-1,)))
    read = 128 * 4096 * 4 / (MACHINE.l3_gbytes * 1e9) * 1e6
    assert read < cost(graph) < 2 * read


@pytest.mark.parametrize(
    ("op", "attrs", "dims", "result", "dearer"),
    [
        ("Softmax", {"axis": 1}, (8.0, 64.0, 64.0), (8.0, 64.0, 64.0), {"axis": 2}),
        ("Resize", {"mode": "linear"}, (1.0, 8.0, 8.0), (1.0, 16.0, 16.0), {"mode": "nearest"}),
        ("MaxPool", {"kernel_shape": (3, 3)}, (1.0, 8.0, 9.0, 9.0), (1.0, 8.0, 3.0, 3.0),
         {"kernel_shape": (2, 2)}),
        ("Gather", {"axis": 1}, (64.0, 64.0), (64.0, 64.0), {"axis": 0}),
    ],
)  # fmt: skip
def test_slow_paths_are_known(
    op: str, attrs: dict[str, object], dims: tuple[float, ...], result: tuple[float, ...],
    dearer: dict[str, object],
) -> None:  # fmt: skip
    tables = packaged_coefficients()
    less = vector_instructions(tables, op, dearer, [dims], result)
    assert vector_instructions(tables, op, attrs, [dims], result) > less


def test_reducing_across_rows_is_slower() -> None:
    along, across = ((64.0, 1.0), (1.0, 64.0))
    assert (
        vector_instructions(packaged_coefficients(), "ReduceMax", {}, [(64.0, 64.0)], across)
        / vector_instructions(packaged_coefficients(), "ReduceMax", {}, [(64.0, 64.0)], along)
        > 10
    )


def test_every_op_has_a_cost() -> None:
    assert all(callable(params.cost) for _, params in OPS if params is not RegionParams)


def test_a_region_of_several_steps_computes_what_its_steps_do() -> None:
    """x → normalised → normalised again, as one node: both arithmetic, one trip to memory."""
    step = NormParams(Norm("rms", 1e-5, gamma=False, beta=False))
    region = RegionParams(1, (RegionStep(step, (0,)), RegionStep(step, (1,))), (2,))
    spec = TensorSpec(DType.F32, (4096, 256))

    def arithmetic(params: NormParams | RegionParams) -> float:
        one = Region("r", "Fused", ("x",), ("y",), (Node("Fused", ("x",), ("y",)),), params)
        graph = TileGraph([one], ["x"], ["y"], {}, {"x": spec, "y": spec})
        slow = CostModel(replace(MACHINE, gflops=1.0), {})(graph, one)
        return slow - CostModel(replace(MACHINE, gflops=1e9), {})(graph, one)

    assert arithmetic(region) == pytest.approx(2 * arithmetic(step)) != 0


# ---- views -----------------------------------------------------------------------------


def fused_cost(net: Net, *outputs: str) -> float:
    graph = net.graph(*outputs)
    optimized(graph)
    return cost(graph)


def test_a_slice_costs_the_part_it_reads() -> None:
    def of(end: int) -> float:
        net = Net()
        x = net.input("x", 64, "seq", 256)
        part = net("Slice", x, net.ints(0), net.ints(end), net.ints(0))
        return fused_cost(net, net("Relu", part))

    assert of(8) < of(32) < of(64)


def test_an_operand_read_across_its_columns_costs_more() -> None:
    def of(perm: list[int]) -> float:
        net = Net()
        x = net.input("x", 64, 64, 64)
        return fused_cost(net, net("Tanh", net("Transpose", x, perm=perm)))

    assert of([1, 0, 2]) < of([0, 2, 1])


def lookalikes() -> TileGraph:
    """Operators that are told apart by one thing each: a constant's numbers, an operand that is
    constant or the same value again, an attribute."""
    net = Net()
    x, y, weight = net.input("x", 64, 1024), net.input("y", 64, 1024), net.weight(64, 1024)
    parts = [net("Slice", x, net.ints(0), net.ints(end), net.ints(1)) for end in (100, 1000)]
    return net.graph(
        *(net("Tanh", part) for part in parts),
        net("Mul", x, x), net("Mul", x, y), net("Mul", x, weight),
        net("Softmax", x, axis=0), net("Softmax", x, axis=1),
    )  # fmt: skip


def test_what_is_known_of_one_region_holds_of_those_alike_alone() -> None:
    graph = lookalikes()
    plain = graph.regions()
    shared = CostModel(MACHINE, {})
    found = [shared(graph, r) for r in plain]
    assert found == [CostModel(MACHINE, {})(graph, r) for r in plain]
    assert len({*found}) == len(plain)
    optimized(graph)
    fused = [r for r in graph.regions() if r.fused]
    again = [shared(graph, r) for r in (*fused, *fused)]
    assert fused and again == 2 * [CostModel(MACHINE, {})(graph, r) for r in fused]


def test_what_values_are_called_changes_no_bit_of_a_prediction() -> None:
    def of(prefix: str) -> float:
        reads = {
            f"{prefix}{i}": TensorSpec(DType.F32, (rows, 1023))
            for i, rows in enumerate(range(1, 1000, 97))
        }
        specs = {**reads, "y": TensorSpec(DType.F32, (1,))}
        node = Node("Strange", (*reads,), ("y",))
        return cost(TileGraph.of_nodes([node], [*reads], ["y"], {}, specs))

    assert len({of(f"value_{i}_") for i in range(20)}) == 1


@pytest.mark.parametrize(
    "op",
    ["Conv", "ConvInteger", "ConvTranspose", "MatMul", "MatMulInteger", "QLinearMatMul",
     "com.microsoft::MatMulNBits", "Softmax", "Attention"],
)  # fmt: skip
@pytest.mark.parametrize("result", [(), (1.0, 8.0, 4.0, 4.0)])
def test_operands_of_unknown_rank_have_a_cost(op: str, result: tuple[float, ...]) -> None:
    """As those of damaged models, or of operators of other domains."""
    cost = ort_cost(packaged_coefficients(), op, {"group": 2}, [(), (), ()], result)
    assert cost.product >= 0 and cost.vector >= 0
