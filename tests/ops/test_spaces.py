"""Access maps against the operators themselves.

An output tile must not change when every operand element outside the claimed boxes becomes NaN,
and must change when the first or last slice of a claimed box does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tracea_graph.ir import DType, Node, TensorSpec, Weight
from tracea_graph.kernels.cpu.panels import PANELS
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.concat import ConcatParams, ConcatPart
from tracea_graph.ops.cumulative_sum import CumulativeSumParams
from tracea_graph.ops.elementwise import IDENTITY, ElementwiseParams
from tracea_graph.ops.embedding import EmbeddingParams
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.gather_elements import GatherElementsParams
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.grid_sample import GridSampleParams
from tracea_graph.ops.index_map import HUGE, IndexMap, ViewMove
from tracea_graph.ops.indexed_slices import GatherNDParams, ScatterNDParams
from tracea_graph.ops.integer_step import IntegerStepParams
from tracea_graph.ops.iota import IotaParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ops.norm import Norm, NormParams
from tracea_graph.ops.operator_iteration_spaces import space_of
from tracea_graph.ops.scatter_elements import ScatterElementsParams
from tracea_graph.ops.weight_layouts import KN, NK
from tracea_graph.ttg import BoundModel, Region, RegionModel, TileGraph, expand_tiles

Array = npt.NDArray[Any]
Run = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass
class Case:
    """One operator on operands of these shapes; an array stands for a constant."""

    op: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    results: int = 1
    params: Any = None
    opset: int = 18
    tight: bool = True


def _arrays(case: Case) -> list[Array]:
    rng = np.random.default_rng(7)
    return [
        rng.standard_normal(o).astype(np.float32) if isinstance(o, tuple) else np.asarray(o)
        for o in case.operands
    ]


def _runner(case: Case, arrays: Sequence[Array]) -> Run:
    if case.params is not None:
        return lambda a: case.params.reference(a)
    names = [f"i{k}" for k in range(len(arrays))]
    outs = [f"o{k}" for k in range(case.results)]
    node = helper.make_node(case.op, names, outs, **case.attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    made = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outs]
    graph = helper.make_graph([node], "g", infos, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)])
    session = ReferenceEvaluator(model)
    return lambda a: session.run(None, dict(zip(names, a, strict=True)))


def _model(case: Case, arrays: Sequence[Array], results: Sequence[Array]) -> RegionModel | None:
    names, outs = [f"i{k}" for k in range(len(arrays))], [f"o{k}" for k in range(len(results))]
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in case.attrs.items()}
    node = Node(case.op, tuple(names), tuple(outs), attrs)
    region = Region("r", case.op, node.inputs, node.outputs, (node,), case.params)
    specs = {
        n: TensorSpec(DType.F32 if a.dtype.kind == "f" else DType.I64, a.shape)
        for n, a in zip((*names, *outs), (*arrays, *results), strict=True)
    }
    weights = {
        n: Weight(n, DType.I64, a.shape, lambda a=a: a)
        for n, a in zip(names, arrays, strict=True)
        if a.dtype.kind == "i"
    }
    graph = TileGraph([region], names, outs, weights, specs, case.opset)
    return space_of(region, graph)


BIAS_RELU = Chain(("full", "row", "full"), (Step("add", (0, 1)), Step("mul", (3, 2))), (4,))
SUM = Chain(("full", "full"), (Step("add", (0, 1)),), (2,))


def map_of(op: str, *ints: int) -> IndexMap:
    return IndexMap((ViewMove(op, ints),))


HEAD_MAP = IndexMap((ViewMove("reshape", (0, 0, 3, 4)), ViewMove("transpose", (0, 2, 1, 3))))
LAST_TWICE = map_of("slice", 0, 2, 3, 1)
IDS = np.array([[1, 0, 4], [2, 2, 3]])
HEADS = AttentionParams(2, 3, 4, 0.5, "add", (0, 6, 0), (12, 12, 8))
GROUPED = AttentionParams(
    4, 3, 4, 0.5, "add", kv_heads=2, layouts=("heads", "transposed", "split", "heads")
)

CASES = (
    Case("MatMul", ((5, 4), (4, 6))),
    Case("MatMul", ((2, 5, 4), (4, 6))),
    Case("MatMul", ((2, 1, 5, 4), (3, 4, 6))),
    Case("MatMul", ((4,), (2, 4, 6))),
    Case("MatMul", ((3, 5, 4), (4,))),
    Case("MatMul", ((4,), (4,))),
    Case("Gemm", ((5, 4), (4, 6), (6,))),
    Case("Gemm", ((4, 5), (6, 4), (5, 1)), {"transA": 1, "transB": 1}),
    Case("Add", ((2, 1, 5), (3, 1))),
    Case("Mul", ((3, 4), ())),
    Case("Relu", ((3, 4),)),
    Case("Clip", ((3, 4), (), ()), tight=False),
    Case("Expand", ((3, 1), np.array([2, 3, 4]))),
    Case("Softmax", ((3, 5), ), {"axis": -1}),
    Case("Softmax", ((3, 4, 2),), {"axis": 1}),
    Case("LogSoftmax", ((3, 4),)),
    Case("LayerNormalization", ((2, 3, 4), (4,), (4,)), {"axis": -1}, results=3),
    Case("LayerNormalization", ((2, 3, 4), (3, 4)), {"axis": 1}),
    Case("ReduceMean", ((3, 4, 5), np.array([-1]))),
    Case("ReduceMax", ((3, 4, 5), np.array([1])), {"keepdims": 0}, tight=False),
    Case("ReduceSum", ((3, 4, 5), np.array([0, 2])), {"keepdims": 0}),
    Case("ReduceSum", ((3, 4),)),
    Case("ReduceMean", ((3, 4, 5),), {"axes": [0]}, opset=13),
    Case("Transpose", ((2, 3, 4),), {"perm": [2, 0, 1]}),
    Case("Transpose", ((2, 3),)),
    Case("Gather", ((5, 4), np.array([[1, 0], [3, 3]])), tight=False),
    Case("Gather", ((3, 5, 2), np.array([4, 1])), {"axis": 1}, tight=False),
    Case("Gather", ((3, 5), np.array(2)), {"axis": 1}, tight=False),
    Case("Reshape", ((2, 3, 8), np.array([2, 3, 2, 4]))),
    Case("Reshape", ((2, 3, 2, 4), np.array([6, 8])), tight=False),
    Case("Reshape", ((1, 6, 1), np.array([2, 1, 3]))),
    Case("Flatten", ((2, 3, 4),), {"axis": 2}, tight=False),
    Case("Squeeze", ((1, 3, 1, 4), np.array([0, 2]))),
    Case("Unsqueeze", ((3, 4), np.array([1]))),
    Case("Concat", ((2, 3), (2, 4), (2, 1)), {"axis": 1}),
    Case("Split", ((2, 7), np.array([3, 4])), {"axis": 1}, results=2),
    Case("Slice", ((6, 7), *map(np.array, ([1, -6], [5, 7], [0, 1], [2, 3])))),
    Case("Slice", ((6, 5), np.array([-1]), np.array([-9]), np.array([0]), np.array([-2]))),
    Case("Slice", ((6, 5), np.array([99]), np.array([1]), np.array([0]), np.array([-2]))),
    Case("FusedGemm", ((2, 3, 4), (2, 4, 16), (20,)), params=GemmParams(4, 20, PANELS, bias=True)),
    Case("FusedGemm", ((3, 4), (6, 4), (6,), (3, 6)), params=GemmParams(
        4, 6, NK, epilogue=BIAS_RELU)),
    Case("FusedGemm", ((3, 4), (4, 6), (3, 6), (6,), (6,)), results=2, params=GemmParams(
        4, 6, KN, epilogue=SUM, norm=Norm("layer", 1e-5), keep_sum=True)),
    Case("FusedNorm", ((2, 3, 4), (4,)), params=NormParams(Norm("rms", 1e-5, beta=False))),
    Case("FusedNorm", ((2, 4), (2, 4), (4,), (4,)), results=2, params=NormParams(
        Norm("layer", 1e-5), SUM, keep_sum=True)),
    Case("FusedElementwise", ((2, 3, 4), (4,), (2, 1, 4)), params=ElementwiseParams(BIAS_RELU)),
    Case("FusedElementwise", ((2, 3, 12), (3, 4)), params=ElementwiseParams(
        SUM, (HEAD_MAP, LAST_TWICE))),
    Case("FusedElementwise", ((2, 3, 5, 4),), params=ElementwiseParams(
        IDENTITY, (map_of("transpose", 0, 2, 1, 3),), (0, 0, 0, 2, 2))),
    Case("FusedElementwise", ((6, 5), (6, 1)), params=ElementwiseParams(
        SUM, (map_of("slice", 0, -1, -HUGE, -2), map_of("slice", 0, 1, 6, 2)))),
    Case("FusedElementwise", ((2, 6), (3,)), params=ElementwiseParams(
        SUM,
        (map_of("unsqueeze", 1).then(ViewMove("expand", (1, 3, 1)), ViewMove("select", (2, -2))),
              IndexMap()))),
    Case("FusedConcat", ((2, 3), (2, 4)), params=ConcatParams(1, (
        ConcatPart(ElementwiseParams(IDENTITY), (0,)),
        ConcatPart(ElementwiseParams(IDENTITY), (1,))))),
    Case("FusedConcat", ((2, 4), (4, 2)), tight=False, params=ConcatParams(0, (
        ConcatPart(ConcatParams(1, tuple(
            ConcatPart(ElementwiseParams(IDENTITY, (map_of("slice", 1, a, a + 2, 1),)), (0,))
            for a in (2, 0))), (0,)),
        ConcatPart(ElementwiseParams(SUM, (map_of("transpose", 1, 0), IndexMap())), (1, 0)),
    ))),
    Case("FusedAttention", ((2, 3, 12), (2, 5, 12), (2, 5, 8), (2, 1, 1, 5)), params=HEADS),
    Case("FusedAttention", ((2, 4, 3, 3), (2, 2, 3, 5), (2, 5, 2, 4), (2, 4, 1, 5)),
         params=GROUPED),
    Case("FusedAttention", ((2, 3, 12), (2, 2, 5, 3), (2, 2, 5, 4), np.array([1, 2])), tight=False,
         params=AttentionParams(4, 3, 4, 0.5, kv_heads=2, causal="placed", widths=(12, 0, 0),
                                layouts=("rows", "heads", "heads", "rows"))),
    Case("FusedKvCacheAppend", ((2, 3, 13), (2, 2, 6, 3), np.array([5, 2]), np.zeros(9)),
         tight=False, params=KvCacheAppendParams(2, 3, 5, 13)),
    Case("FusedKvCacheAppend", ((2, 2, 3, 3), (2, 2, 6, 3), np.array([5, 2]), np.zeros(9)),
         tight=False, params=KvCacheAppendParams(2, 3, 0, 0, layout="heads")),
    Case("FusedKvCacheAppend", ((2, 3, 2, 3), (2, 2, 6, 3), np.array([5, 2]), np.zeros(9)),
         tight=False, params=KvCacheAppendParams(2, 3, 0, 0, layout="split")),
    Case("FusedGatherElements",
         ((2, 3, 5), np.array([[[1, 0, 4, 4], [2, 2, 3, 0], [0, 1, 2, 3]]])),
         tight=False, params=GatherElementsParams(3)),
    Case("FusedGatherND", ((2, 3, 5, 4), np.array([[[1], [0], [2]], [[0], [0], [1]]])),
         tight=False, params=GatherNDParams(1)),
    Case("FusedGatherND", ((2, 3, 5), np.array([[1, 0], [0, 2]])), tight=False,
         params=GatherNDParams()),
    Case("FusedScatterND", ((3, 4, 5), np.array([[1], [0], [1]]), (3, 4, 5)), tight=False,
         params=ScatterNDParams("add")),
    Case("FusedGather", ((2, 3, 5), np.array([[1, 0], [2, 2]])), tight=False,
         params=GatherParams(1)),
    Case("FusedScatterElements", ((2, 3, 5), np.zeros((2, 2, 5), np.int64), (2, 2, 5)),
         tight=False, params=ScatterElementsParams(1, "add")),
    Case("FusedCumSum", ((2, 3, 5),), tight=False, params=CumulativeSumParams(1)),
    Case("FusedGridSample", ((2, 3, 5, 4), (2, 3, 2, 2)), tight=False,
         params=GridSampleParams("cubic", "border")),
    Case("FusedIntegerStep", (np.arange(12).reshape(3, 4), np.arange(4)),
         params=IntegerStepParams("Mul")),
    Case("FusedIota", ((2, 3),), params=IotaParams(1, ("0.1", 4), 0.5, (1.0, 2.0))),
    Case("FusedEmbedding", ((5, 4), IDS, (3, 4), np.array([[0, 1, 2]])), params=EmbeddingParams(2),
         tight=False),
    Case("FusedEmbedding", ((5, 4), IDS, (4,), (4,)), tight=False, params=EmbeddingParams(
        1, Norm("layer", 1e-5))),
)  # fmt: skip


def _inside(box: tuple[Array, Array], tile: int) -> tuple[slice, ...]:
    return tuple(map(slice, box[0][tile].tolist(), box[1][tile].tolist()))


def _tiles(bound: BoundModel) -> tuple[Array, Array]:
    return expand_tiles(bound, (2, 3, 0)).ranges()


def _random_boxes(bound: BoundModel) -> tuple[Array, Array]:
    """Parts of every parallel axis, also of those that tiles never cut.

    None where results merge axes: the image of such a part is no box.
    """
    rng = np.random.default_rng(3)
    merged = any((np.count_nonzero(a.matrix, 1) > 1).any() for a in bound.writes)
    count = 0 if merged else 6
    starts = rng.integers(0, bound.extents, (count, len(bound.extents)))
    stops = rng.integers(starts + 1, bound.extents + 1)
    whole = [a.reduction for a in bound.model.space.axes]
    starts[:, whole], stops[:, whole] = 0, bound.extents[whole]
    return starts, stops


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{c.operands[0]}")
def test_tiles_depend_on_their_boxes_and_on_nothing_else(case: Case) -> None:
    arrays = _arrays(case)
    run = _runner(case, arrays)
    expected = run(arrays)
    model = _model(case, arrays, expected)
    assert model is not None
    bound = model.bind({})
    starts, stops = map(np.concatenate, zip(_tiles(bound), _random_boxes(bound), strict=True))
    views = _views(case, arrays)
    boxes = [(int(a.value[1:]), a.box(starts, stops)) for a in bound.reads]
    written = [(int(a.value[1:]), a.box(starts, stops)) for a in bound.writes]
    covered = [np.zeros(np.shape(y), int) for y in expected]
    for t in range(len(starts)):
        for index, box in written:
            covered[index][_inside(box, t)] += 1

        def tile(results: Sequence[Array], t: int = t) -> list[Array]:
            return [np.asarray(results[i])[_inside(b, t)] for i, b in written]

        right = tile(expected)
        poisoned = [a.copy() for a in arrays]
        for i, array in enumerate(arrays):
            if array.dtype.kind == "f" and array.ndim:
                keep = np.zeros(np.shape(views(array, i)), bool)
                for index, box in boxes:
                    if index == i:
                        keep[_inside(box, t)] = True
                views(poisoned[i], i)[~keep] = np.nan
        with np.errstate(invalid="ignore"):
            for got, want in zip(tile(run(poisoned)), right, strict=True):
                np.testing.assert_array_equal(got, want)
            if case.tight:
                _check_edges_matter(arrays, boxes, t, views, lambda a: tile(run(a)))
    assert all((c >= 1).all() for c in covered)


def _views(case: Case, arrays: Sequence[Array]) -> Callable[[Array, int], Array]:
    """Operands as the model describes them: panels as their matrix ``[K, N]``."""
    packed = isinstance(case.params, GemmParams) and case.params.layout == PANELS

    def view(array: Array, operand: int) -> Array:
        if not (packed and operand == 1):
            return array
        return PanelView(array, case.params.n)  # type: ignore[return-value]

    return view


class PanelView:
    """Just enough of ``panels[K, N]`` to be poisoned."""

    def __init__(self, panels: Array, n: int) -> None:
        self.panels, self.n = panels, n
        self.shape = (panels.shape[1], n)

    def __setitem__(self, mask: Any, value: float) -> None:
        matrix = self.panels.transpose(1, 0, 2).reshape(self.shape[0], -1)
        if isinstance(mask, np.ndarray):
            mask = np.pad(mask, ((0, 0), (0, matrix.shape[1] - self.n)))
        matrix[mask] = value
        panels, k, width = self.panels.shape
        self.panels[:] = matrix.reshape(k, panels, width).transpose(1, 0, 2)


def _check_edges_matter(
    arrays: Sequence[Array],
    boxes: Sequence[tuple[int, tuple[Array, Array]]],
    t: int,
    views: Callable[[Array, int], Array],
    tile: Callable[[Sequence[Array]], list[Array]],
) -> None:
    """No face of a claimed box can be left out."""
    for i, (lo, hi) in boxes:
        if arrays[i].dtype.kind != "f" or (hi[t] <= lo[t]).any():
            continue
        for d in range(len(lo[t])):
            for edge in (lo[t][d], hi[t][d] - 1):
                part = list(_inside((lo, hi), t))
                part[d] = slice(edge, edge + 1)
                changed = [a.copy() for a in arrays]
                views(changed[i], i)[tuple(part)] = np.nan
                assert any(np.isnan(y).any() for y in tile(changed)), (i, d, edge)


def _graph(
    op: str, specs: Mapping[str, tuple[Any, ...] | None], attrs: Mapping[str, Any] | None = None
) -> tuple[Region, TileGraph]:
    *inputs, out = specs
    node = Node(op, tuple(inputs), (out,), attrs or {})
    made = {v: TensorSpec(DType.F32, shape) for v, shape in specs.items()}
    graph = TileGraph.of_nodes([node], inputs, [out], {}, made)
    return graph.regions()[0], graph


def test_symbolic_shapes_stay_symbolic() -> None:
    model = space_of(*_graph("MatMul", {"x": ("b", "s", 8), "w": (8, 6), "y": ("b", "s", 6)}))
    assert model is not None and model.rows == ("b0", "m") and not model.batch
    assert model.bind({"b": 2, "s": 5}).problem == (1, 10, 6, 8)
    assert model.flops({"b": 2, "s": 5}) == 2 * 2 * 5 * 6 * 8


def test_batched_products_are_separate_problems() -> None:
    shapes = {"q": ("b", 12, "s", 64), "k": ("b", 12, 64, "s"), "y": ("b", 12, "s", "s")}
    model = space_of(*_graph("MatMul", shapes))
    assert model is not None
    assert model.bind({"b": 2, "s": 5}).problem == (24, 5, 5, 64)
    tiles = expand_tiles(model.bind({"b": 1, "s": 5}), (3, 0, 0))
    columns = tiles.edges[tiles.edges["kind"] == 2]
    assert len(columns) == 12 and (columns["source"] // 2 == columns["target"] // 2).all()


def test_heads_split_and_merge_with_symbols() -> None:
    split = space_of(
        *_graph("Reshape", {"x": ("b", "s", 768), "i": (4,), "y": ("b", "s", 12, 64)})
    )
    merge = space_of(
        *_graph("Reshape", {"x": ("b", "s", 12, 64), "i": (3,), "y": ("b", "s", 768)})
    )
    assert split is not None and merge is not None
    assert [str(d.terms) for d in split.reads[0].dims][2] == "(('d2', 64), ('d3', 1))"
    assert [str(d.terms) for d in merge.writes[0].dims][2] == "(('d2', 64), ('d3', 1))"


def test_gather_touches_the_rows_it_takes() -> None:
    model = space_of(*_graph("Gather", {"t": (30522, 768), "i": (1, "s"), "y": (1, "s", 768)}))
    assert model is not None
    bound = model.bind({"s": 128})
    assert bound.reads[0].touched(*expand_tiles(bound).ranges()).tolist() == [128 * 768]


@pytest.mark.parametrize(
    ("op", "specs", "attrs"),
    [
        ("Reshape", {"x": (2, 6), "i": (2,), "y": (3, 4)}, {}),
        ("Reshape", {"x": ("a", 6), "i": (2,), "y": ("b", 3)}, {}),
        ("Reshape", {"x": (0, 6), "i": (2,), "y": (3, 0)}, {}),
        ("MatMul", {"x": None, "w": (4, 4), "y": None}, {}),
        ("Slice", {"x": (4, 4), "s": (1,), "e": (1,), "y": ("n", 4)}, {}),
        ("ReduceSum", {"x": (4, 4), "axes": (1,), "y": (4, 1)}, {}),
        ("NonZero", {"x": (4, 4), "y": (2, "n")}, {}),
        ("com.microsoft::MatMul", {"x": (4, 4), "w": (4, 4), "y": (4, 4)}, {}),
    ],
)
def test_what_is_not_known_is_opaque(
    op: str, specs: dict[str, Any], attrs: dict[str, Any]
) -> None:
    assert space_of(*_graph(op, specs, attrs)) is None


def test_softmax_before_opset_13_flattens() -> None:
    region, graph = _graph("Softmax", {"x": (2, 3, 4), "y": (2, 3, 4)})
    graph.opset = 11
    model = space_of(region, graph)
    assert model is not None and model.rows == ("d0",)


def test_merged_results_are_opaque() -> None:
    """The tiles of merged axes are no boxes of the result."""
    heads = map_of("transpose", 0, 2, 1, 3)
    case = Case("FusedElementwise", ((2, 3, 5, 4),), params=ElementwiseParams(
        IDENTITY, (heads,), (0, 0, 12)))  # fmt: skip
    arrays = _arrays(case)
    assert _model(case, arrays, _runner(case, arrays)(arrays)) is None
