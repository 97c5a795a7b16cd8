"""A decoder in plain ONNX whose caches are pools of pages that a table names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.gpu.launches import programs
from tests.graphs import Array, Net, normal, session
from tracea_graph import Options, Report, api
from tracea_graph.ir import DType
from tracea_graph.onnx_io import load

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]

HEADS, KEPT, SIZE, ROWS, WIDTH, LAYERS = 4, 2, 32, 16, 48, 2
FORMS = {"where": 17, "add": 17, "operator": 23, "heads first": 17}
"""Opsets by the form of masks and pages."""
LOWEST = float(np.finfo(np.float32).min)


def matrix(net: Net, rows: int, columns: int) -> str:
    return net.const(normal(rows, columns, seed=len(net.weights)) / np.sqrt(rows))


def attended(net: Net, form: str, layer: int, x: str, where: str, mask: str) -> tuple[str, ...]:
    """Write a layer's new rows to its pools, and attend to them; also returns the pools."""
    q, *new = (
        net("Reshape", net("MatMul", x, matrix(net, WIDTH, n * SIZE)), net.ints(0, -1, n, SIZE))
        for n in (HEADS, KEPT, KEPT)
    )
    found, pools = list[str](), list[str]()
    for side, row in zip("kv", new, strict=True):
        first = form == "heads first"
        page = (KEPT, ROWS) if first else (ROWS, KEPT)
        pool = net.input(f"pool_{side}{layer}", "pages", *page, SIZE)
        flat = net("Reshape", row, net.ints(-1, KEPT, SIZE))
        if first:  # rows [page, row] of [pages, rows, heads, columns]
            turned = net("ScatterND", net("Transpose", pool, perm=[0, 2, 1, 3]), where, flat)
            pool = net("Transpose", turned, perm=[0, 2, 1, 3], name=f"new_{side}{layer}")
        else:
            pool = net("ScatterND", pool, where, flat, name=f"new_{side}{layer}")
        pools.append(pool)
        held = net("Gather", pool, "table", axis=0)
        if first:
            held = net("Transpose", held, perm=[0, 2, 1, 3, 4])
            found.append(net("Reshape", held, net.ints(0, KEPT, -1, SIZE)))
        else:
            held = net("Reshape", held, net.ints(0, -1, KEPT, SIZE))
            found.append(net("Transpose", held, perm=[0, 2, 1, 3]))
    q = net("Transpose", q, perm=[0, 2, 1, 3])
    if form == "operator":
        y = net("Attention", q, *found, mask)
    else:
        k, v = (repeated(net, one) for one in found)
        s = net("Mul", net("MatMul", q, net("Transpose", k, perm=[0, 1, 3, 2])), SIZE**-0.5)
        s = net("Add", s, mask) if form == "add" else net("Where", mask, s, -np.inf)
        y = net("MatMul", net("Softmax", s, axis=-1), v)
    y = net("Reshape", net("Transpose", y, perm=[0, 2, 1, 3]), net.ints(0, 0, HEADS * SIZE))
    return net("MatMul", y, matrix(net, HEADS * SIZE, WIDTH)), *pools


def repeated(net: Net, held: str) -> str:
    """Repeat heads of keys or values for those of queries."""
    sizes = net("Shape", held)
    batch, keys = (net("Slice", sizes, net.ints(i), net.ints(i + 1)) for i in (0, 2))
    wide = net("Concat", batch, net.ints(KEPT, HEADS // KEPT), keys, net.ints(SIZE), axis=0)
    wide = net("Expand", net("Unsqueeze", held, net.ints(2)), wide)
    sizes = net("Concat", batch, net.ints(HEADS), keys, net.ints(SIZE), axis=0)
    return net("Reshape", wide, sizes)


def decoder(form: str, path: Path) -> Path:
    net = Net(FORMS[form])
    x = net.input("x", "batch", 1, WIDTH)
    table = net.input("table", "batch", "listed", dtype=DType.I32)
    where, lengths = net.ids("where", "batch", 2), net.ids("lengths", "batch")
    listed = net("Gather", net("Shape", table), net.const(1, np.int64))
    zero, one = net.const(0, np.int64), net.const(1, np.int64)
    places = net("Range", zero, net("Mul", listed, net.const(ROWS, np.int64)), one)
    mask = net("Less", places, net("Reshape", lengths, net.ints(-1, 1, 1, 1)))
    mask = net("Where", mask, 0.0, LOWEST) if form == "add" else mask
    pools = list[str]()
    for layer in range(LAYERS):
        y, *made = attended(net, form, layer, x, where, mask)
        x = net("Add", x, y)
        pools += made
    return net.save(path, x, *pools)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder = tmp_path_factory.mktemp("paged")
    paths = [decoder(form, folder / f"paged{i}.onnx") for i, form in enumerate(FORMS)]
    outcomes = [*api.optimize_many(paths, Options(folder / "out", keep="all"))]
    assert all(o.report is not None for o in outcomes), [o.error for o in outcomes]
    return {name: o.report for name, o in zip(FORMS, outcomes, strict=True) if o.report}


def feeds(seed: int, batch: int, listed: int) -> dict[str, Array]:
    """Tables of pages in any order, some of them in several items or named from the end."""
    rng = np.random.default_rng(seed)
    pages = batch * listed + 2
    table = rng.integers(-pages, pages, (batch, listed)).astype(np.int32)
    lengths = rng.integers(1, listed * ROWS + 1, batch)
    last = lengths - 1
    own = np.arange(batch), last // ROWS
    table[own] = batch * listed + 1 - np.arange(batch)  # no two items write to one page
    where = np.stack([table[own].astype(np.int64), last % ROWS], 1)
    found = {"x": rng.standard_normal((batch, 1, WIDTH)), "table": table, "where": where,
             "lengths": lengths}  # fmt: skip
    return {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in found.items()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("batch", "listed"), [(1, 1), (3, 4), (2, 9)])
def test_a_step_reads_the_pages_of_any_table(
    reports: dict[str, Report], form: str, batch: int, listed: int
) -> None:
    report = reports[form]
    assert report.status == "passed" and report.library, report.status_reason
    given = feeds(batch, batch, listed)
    rng, page = np.random.default_rng(7), (KEPT, ROWS) if form == "heads first" else (ROWS, KEPT)
    for layer in range(LAYERS):
        for side in "kv":
            shape = batch * listed + 2, *page, SIZE
            given[f"pool_{side}{layer}"] = rng.standard_normal(shape).astype(np.float32)
    want = session(Path(report.input)).run(None, given)
    for library in (Path(report.library), None):
        got = session(Path(report.output), library, optimized=True).run(None, given)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize("form", FORMS)
def test_attention_becomes_a_step_of_a_program(reports: dict[str, Report], form: str) -> None:
    left = {n.op_type for n in onnx.load(reports[form].output).graph.node}
    assert not {"Softmax", "Attention", "MatMul"} & left, left


@pytest.mark.parametrize("form", FORMS)
def test_on_a_gpu_no_page_is_copied(form: str, tmp_path: Path) -> None:
    sizes = {"batch": 3, "listed": 40, "pages": 130}
    placed, _, _ = programs(load(decoder(form, tmp_path / "m.onnx")), "fp16", shape=sizes)
    calls = [call.op for one in placed for call in one.program.calls]
    assert calls.count("attention_cached") == LAYERS and "gather_nd" not in calls, calls
