"""Attention that reads keys and values through a table of pages, against NumPy."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from tests.kernels.gpu.cases import TOLERANCE
from tests.kernels.gpu.machine import Array
from tests.kernels.gpu.programs import program_of, run_program
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.gpu.kernel_selection import launches_for
from tracea_graph.ops.attention import LOWEST, AttentionParams
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.ops.elementwise import ElementwiseParams
from tracea_graph.ops.fused_region import RegionParams, RegionStep
from tracea_graph.ops.gather import GatherParams
from tracea_graph.ops.index_map import IndexMap, ViewMove

HEADS, KEPT, SIZE, ROWS = 4, 2, 32, 16
RNG = np.random.default_rng(0)
COPY = Chain(("full",), (), (0,))
SWAP = ViewMove("transpose", (0, 2, 1, 3))
SPLIT = ViewMove("reshape", (0, -1, KEPT, SIZE))
TURN = ViewMove("transpose", (0, 2, 1, 3, 4))


def view(*moves: ViewMove, target: tuple[int, ...] = (), chain: Chain = COPY) -> ElementwiseParams:
    return ElementwiseParams(chain, (IndexMap(moves),), target)


ROWS_FIRST, HEADS_FIRST = (ROWS, KEPT, SIZE), (KEPT, ROWS, SIZE)
FORMS = {
    "split": (ROWS_FIRST, "split", (view(SPLIT),)),
    "heads": (ROWS_FIRST, "heads", (view(SPLIT, SWAP),)),
    "heads of pages": (HEADS_FIRST, "heads", (view(TURN, target=(0, KEPT, -1, SIZE)),)),
    "rows": (ROWS_FIRST, "rows", (view(ViewMove("reshape", (0, -1, KEPT * SIZE))),)),
    "columns": ((ROWS, KEPT * SIZE), "rows", (view(ViewMove("reshape", (0, -1, KEPT * SIZE))),)),
    "twice": (ROWS_FIRST, "heads", (view(TURN), view(ViewMove("transpose", (0, 3, 2, 1, 4)),
                                                     target=(0, KEPT, -1, SIZE)))),
}  # fmt: skip
"""Dimensions of a page, the layout that attention reads, and the views between them."""
ORDERS = {
    "rows last": (HEADS_FIRST, "split", (view(SPLIT),)),
    "pages inside": (ROWS_FIRST, "split", (view(TURN, target=(0, -1, KEPT, SIZE)),)),
    "not turned": (ROWS_FIRST, "heads", (view(target=(0, KEPT, -1, SIZE)),)),
}
"""Views that do not give items their rows in order."""


def steps(
    form: tuple[tuple[int, ...], str, tuple[ElementwiseParams, ...]], mask: str = "bool",
    narrow: str = "f16", stored: DType = DType.F32,
) -> RegionParams:  # fmt: skip
    """Of q, both pools, the table and a mask, numbered 0 to 4."""
    _, layout, views = form
    made, operands = list[RegionStep](), [0]
    for pool in (1, 2):
        made.append(RegionStep(GatherParams(0), (pool, 3)))
        if stored is not DType.F32:
            made.append(RegionStep(view(chain=replace(COPY, dtypes=(stored,))), (4 + len(made),)))
        for one in views:
            made.append(RegionStep(one, (4 + len(made),)))
        operands.append(4 + len(made))
    width = KEPT * SIZE if layout == "rows" else 0
    attend = AttentionParams(
        HEADS, SIZE, SIZE, SIZE**-0.5, mask, widths=(0, width, width), kv_heads=KEPT,
        layouts=("heads", layout, layout, "rows"),
    )  # fmt: skip
    made.append(RegionStep(attend, (*operands, 4), narrow=narrow))
    return RegionParams(5, tuple(made), (4 + len(made),))


def arrays(page: tuple[int, ...], queries: int = 1, stored: DType = DType.F32,
           index: type = np.int32, mask: str = "bool") -> list[Array]:  # fmt: skip
    """Items of 13, 48 and 40 rows; pages are repeated, and not in order."""
    kind = np.float32 if stored is DType.F32 else np.float16
    table = np.array([[4, 2, 1], [0, 2, 0], [-1, 3, 3]], index)
    lengths, places = np.array([13, 48, 40]), np.arange(3 * ROWS)
    kept = places < lengths[:, None, None, None]
    added = np.where(kept, RNG.standard_normal(kept.shape), LOWEST).astype(np.float32)
    return [
        RNG.standard_normal((3, HEADS, queries, SIZE)).astype(np.float32),
        *(RNG.standard_normal((5, *page)).astype(kind) for _ in "kv"), table,
        kept if mask == "bool" else added,
    ]  # fmt: skip


TYPES = {"float32": DType.F32, "float16": DType.F16, "int32": DType.I32, "int64": DType.I64,
         "bool": DType.BOOL}  # fmt: skip


def ops(params: RegionParams, given: list[Array]) -> list[str]:
    specs = [TensorSpec(TYPES[str(a.dtype)], a.shape) for a in given]
    return [call.op for call in program_of(params, specs, DType.F32).calls]


def compare(params: RegionParams, given: list[Array]) -> None:
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in given]
    for got, expected in zip(run_program(params, given), params.reference(wide), strict=True):
        most = 3 * TOLERANCE[DType.F16] * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


@pytest.mark.parametrize("form", FORMS)
def test_no_page_is_copied(form: str) -> None:
    found = ops(steps(FORMS[form]), arrays(FORMS[form][0]))
    assert "attention_cached" in found and not {"gather_nd", "copy", "attention"} & {*found}


@pytest.mark.parametrize("form", ORDERS)
def test_rows_in_another_order_are_copied(form: str) -> None:
    assert ops(steps(ORDERS[form]), arrays(ORDERS[form][0])).count("gather_nd") == 2


@pytest.mark.compiler
@pytest.mark.parametrize("form", ["split", "heads of pages", "columns", "twice"])
def test_pages_are_read_where_they_are(form: str) -> None:
    compare(steps(FORMS[form]), arrays(FORMS[form][0]))


@pytest.mark.compiler
def test_pages_in_fp16_are_read_as_they_are() -> None:
    params = steps(FORMS["heads"], "add", "", DType.F16)
    given = arrays(ROWS_FIRST, 2, DType.F16, np.int64, "add")
    assert [op for op in ops(params, given) if op != "elementwise"] == ["attention_cached"]
    compare(params, given)


@pytest.mark.compiler
@pytest.mark.parametrize("form", ORDERS)
def test_copied_pages_are_right(form: str) -> None:
    compare(steps(ORDERS[form]), arrays(ORDERS[form][0]))


def test_many_queries_read_a_copy() -> None:
    found = ops(steps(FORMS["split"]), arrays(ROWS_FIRST, 40))
    assert found.count("gather_nd") == 2 and "attention" in found


def some_queries(page: tuple[int, ...]) -> list[tuple[int | str, ...]]:
    """Shapes of which all but those of pages vary."""
    pools = [("p", *page)] * 2
    return [("b", HEADS, "s", SIZE), *pools, ("b", "n"), ("b", 1, 1, "t")]


@pytest.mark.parametrize(("queries", "launched"), [
    (1, ["attention_cached"]), (15, ["attention_cached"]),
    (16, ["gather_nd", "gather_nd", "attention"]),
])  # fmt: skip
def test_a_program_for_one_query_copies_pages_for_many(queries: int, launched: list[str]) -> None:
    shapes = some_queries(ROWS_FIRST)
    kinds = (DType.F32, DType.F32, DType.F32, DType.I32, DType.BOOL)
    specs = [TensorSpec(kind, s) for kind, s in zip(kinds, shapes, strict=True)]
    calls = program_of(steps(FORMS["split"]), specs, DType.F32, LIKELY).calls
    sizes = {"b": 2, "s": queries, "p": 5, "n": 3, "t": 3 * ROWS}
    assert [call.op for call in calls if call.op != "elementwise"
            and prod(launches_for(call)[0][0].blocks(sizes))] == launched  # fmt: skip


LIKELY = {"b": 1, "s": 1, "p": 5, "n": 3, "t": 3 * ROWS}


@pytest.mark.compiler
@pytest.mark.parametrize("form", ["split", "heads of pages", "columns", "twice"])
@pytest.mark.parametrize("queries", [1, 20])
def test_a_program_for_one_query_computes_any_number(form: str, queries: int) -> None:
    page = FORMS[form][0]
    params, given = steps(FORMS[form]), arrays(page, queries)
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in given]
    found = run_program(params, given, shapes=some_queries(page), likely=LIKELY)
    for got, expected in zip(found, params.reference(wide), strict=True):
        most = 3 * TOLERANCE[DType.F16] * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=most)


def test_pages_with_another_reader_are_copied() -> None:
    params = steps(FORMS["split"])
    more = RegionStep(ElementwiseParams(Chain(("full",), (Step("mul", (0, 2.0)),), (1,))), (6,))
    params = RegionParams(5, (*params.steps, more), (*params.results, params.results[0] + 1))
    assert ops(params, arrays(ROWS_FIRST)).count("gather_nd") == 2
