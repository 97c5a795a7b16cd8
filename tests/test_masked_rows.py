"""Attention in every spelling, over rows of which all, some or no keys are masked: through the
whole pipeline, with the library and without it, it answers as ONNX Runtime does unoptimized."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tests.highest import highest_level
from tracea_graph import Options, api
from tracea_graph.check.worker_process import Array, Worker
from tracea_graph.config import TOLERANCE
from tracea_graph.ir import DType
from tracea_graph.ops.attention import LOWEST

pytestmark = pytest.mark.compiler
H, D = 2, 8
LOW = {"-inf": -np.inf, "lowest": LOWEST, "-3e38": -3e38, "-1e9": -1e9, "-0.5": -0.5}
"""What masks make of a score; some that are seen are less than the last."""
SIZES = ((2, 1, 9), (1, 4, 33), (2, 30, 30), (1, 26, 290), (1, 520, 520))
"""Items, queries and keys: one query, few, one block of keys, several; a large mask."""
PRECISIONS = {"fp32": TOLERANCE.exact, "bf16": 5e-2}


def plain(net: Net, of: Callable[[Net, str], str], guard: bool = False) -> str:
    """What exporters write around a Softmax; ``of`` masks the scores."""
    scores = net("MatMul", "q", net("Transpose", "k", perm=[0, 1, 3, 2]))
    p = net("Softmax", of(net, net("Mul", scores, D**-0.5)), axis=-1)
    if guard:
        p = net("Where", net("IsNaN", p), 0.0, p)
    return net("MatMul", p, "v")


def places(net: Net, value: str, axis: int) -> str:
    count = net("Gather", net("Shape", value), net.const(axis, np.int64))
    return net("Range", net.const(0, np.int64), count, net.const(1, np.int64))


def in_order(net: Net) -> str:
    """True where a key is not later than its query."""
    return net(
        "LessOrEqual", places(net, "k", 2), net("Unsqueeze", places(net, "q", 2), net.ints(1))
    )


def rows(net: Net, value: str) -> str:
    """``[B,H,S,D]`` as ``[B,S,H·D]``."""
    return net("Reshape", net("Transpose", value, perm=[0, 2, 1, 3]), net.ints(0, 0, H * D))


def multi_head(net: Net, mask: str, **attrs: Any) -> str:
    more = ("", "m") if mask == "m" else (mask,)
    operands = (*(rows(net, x) for x in "qkv"), "", *more)
    return net("MultiHeadAttention", *operands, domain="com.microsoft", num_heads=H, **attrs)


def projected(net: Net, mask: str, **attrs: Any) -> str:
    """com.microsoft Attention, whose projections leave q, k and v about as they are."""
    w = np.concatenate([np.eye(H * D)] * 3, 1) + 0.01 * normal(H * D, 3 * H * D, seed=3)
    bias = np.repeat([0, 0, 2], H * D)
    more = ("", "", "m") if mask == "m" else (mask,)
    operands = (rows(net, "v"), net.const(w), net.const(bias), *more)
    return net("Attention", *operands, domain="com.microsoft", num_heads=H, **attrs)


def group_query(net: Net, **attrs: Any) -> str:
    total = net("Gather", net("Shape", "k"), net.const(2, np.int64))
    length = net("Sub", total, net.const(1, np.int64))
    items = net("Slice", net("Shape", "k"), net.ints(0), net.ints(1))
    lengths, total = (
        net("Cast", x, to=DType.I32.onnx) for x in (net("Expand", length, items), total)
    )
    values = [rows(net, x) for x in "qkv"]
    operands = (*values, "", "", lengths, total, "", "", "", "m")
    return net.many(
        "GroupQueryAttention", 3, *operands, domain="com.microsoft", num_heads=H,
        kv_num_heads=H, **attrs,
    )[0]  # fmt: skip


def _add(net: Net, scores: str) -> str:
    return net("Add", scores, "m")


def _add_in_order(net: Net, scores: str) -> str:
    return net("Where", in_order(net), _add(net, scores), -np.inf)


def _choose(net: Net, scores: str, low: float) -> str:
    return net("Where", "keep", scores, low)


def _add_choice(net: Net, scores: str, low: float) -> str:
    return net("Add", scores, net("Where", "keep", 0.0, low))


def _attention(net: Net, mask: str, order: int, cap: float) -> str:
    return net("Attention", *"qkv", mask, is_causal=order, softcap=cap)


def _spellings() -> dict[str, Callable[[Net], str]]:
    """By name; those of as many keys as queries say "in a square"."""
    made: dict[str, Callable[[Net], str]] = {}
    for guard, end in ((False, ""), (True, ", guarded")):
        made[f"added{end}"] = partial(plain, of=_add, guard=guard)
        made[f"added, in order{end}"] = partial(plain, of=_add_in_order, guard=guard)
        for name, low in LOW.items():
            for word, of in (("chosen", _choose), ("choice added", _add_choice)):
                made[f"{word}, {name}{end}"] = partial(plain, of=partial(of, low=low), guard=guard)
    for mask, order, cap in itertools.product(("m", "keep"), (0, 1), (0.0, 2.0)):
        build = partial(_attention, mask=mask, order=order, cap=cap)
        made[f"Attention of {mask}, order {order}, cap {cap}"] = build
    for order, where in ((0, ""), (1, ", in order, in a square")):
        bias, padding = ({"mask": m, "unidirectional": order} for m in ("m", "kept"))
        contributed = (("MultiHeadAttention", multi_head, where),
                       ("contributed Attention", projected, where or ", in a square"))  # fmt: skip
        for op, write, end in contributed:
            made[f"{op}{end}"] = partial(write, **bias)
            for name, low in LOW.items():
                build = partial(write, **padding, mask_filter_value=low)
                made[f"{op} of padding, {name}{end}"] = build
    for cap in (0.0, 2.0):
        build = partial(group_query, softcap=cap)
        made[f"GroupQueryAttention, cap {cap}, in a square"] = build
    return made


NAMES = {
    square: [n for n in _spellings() if square == ("square" in n)] for square in (False, True)
}


def net_of(square: bool, opset: int = 23, start: str = "") -> Net:
    """Every spelling whose name starts so, one output each, over the same operands."""
    net = Net(opset)
    keys = "s" if square else "t"
    net.input("q", "n", H, "s", D)
    net.input("k", "n", H, keys, D)
    net.input("v", "n", H, keys, D)
    net.input("m", "n", 1, "s", keys)
    net.input("keep", "n", 1, "s", keys, dtype=DType.BOOL)
    net.input("kept", "n", keys, dtype=DType.I32)
    net.graph(*(_spellings()[name](net) for name in NAMES[square] if name.startswith(start)))
    return net


def feeds(sizes: tuple[int, int, int], low: float) -> dict[str, Array]:
    """Rows of which none, some or all keys are masked; the first item's keys are all padding."""
    items, queries, keys = sizes
    shape = (items, 1, queries, keys)
    keep = np.random.default_rng(keys).random(shape) < 0.6
    keep[:, :, :, -1] = True  # in order, some rows see nothing but what they may not
    keep[:, :, 1::3] = True
    keep[:, :, ::3] = False
    kept = np.random.default_rng(1).integers(0, 2, (items, keys))
    kept[0] = 0
    bias = np.where(keep, normal(*shape), np.float32(low))
    bias[0, 0, 0, ::2] = -np.inf
    return {
        "q": normal(items, H, queries, D), "k": normal(items, H, keys, D, seed=1),
        "v": normal(items, H, keys, D, seed=2) + 2, "m": bias, "keep": keep,
        "kept": kept.astype(np.int32),
    }  # fmt: skip


def assert_equal(found: Array, wanted: Array, limit: float, what: str) -> None:
    """NaN, infinities and numbers in the same places, numbers up to a share of the largest."""
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), what)
    numbers = np.isfinite(wanted)
    largest = np.abs(wanted[numbers]).max(initial=1e-3)
    error = np.abs(found[numbers] - wanted[numbers]).max(initial=0) / largest
    assert error <= limit, f"{what}: {error:.1e}"


@pytest.fixture(scope="module", params=PRECISIONS)
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[bool, tuple[Net, Path, float]]:
    """Both nets, their results and how far these may be off."""
    precision, folder = request.param, tmp_path_factory.mktemp(request.param)
    nets = {square: net_of(square) for square in (False, True)}
    paths = {square: folder / f"square-{square}.onnx" for square in nets}
    for square, net in nets.items():
        onnx.save(net.model, paths[square])
    options = Options(folder / "out", keep="all", precision=precision, verify=False)
    with highest_level(float32=True):  # results run at no other
        reports = [o.report for o in api.optimize_many([*paths.values()], options)]
    made = [Path(report.output) for report in reports if report and report.library]
    assert len(made) == len(nets)
    pairs = zip(nets.items(), made, strict=True)
    return {square: (net, path, PRECISIONS[precision]) for (square, net), path in pairs}


@pytest.mark.parametrize("square", [False, True])
def test_every_spelling_is_fused(
    square: bool, results: dict[bool, tuple[Net, Path, float]]
) -> None:
    """But those in order whose queries and keys are inputs of their own, which may differ in
    length though they share a name: by a bias, or by padding of -inf that keys out of order would
    outweigh anyhow."""
    ops = [node.op_type for node in onnx.load(results[square][1]).graph.node]
    left = [op for op in ops if "Softmax" in op or op.endswith("Attention")]
    assert left == ["MultiHeadAttention"] * 5 * square


@pytest.mark.parametrize("with_library", [True, False], ids=["library", "bodies"])
@pytest.mark.parametrize("square", [False, True])
def test_masked_rows_are_what_onnx_runtime_makes_of_them(
    square: bool, with_library: bool, results: dict[bool, tuple[Net, Path, float]]
) -> None:
    net, path, limit = results[square]
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so") if with_library else None)
        for sizes, (name, low) in itertools.product(SIZES, LOW.items()):
            if square:
                sizes = (sizes[0], sizes[1], sizes[1])
            given = feeds(sizes, low)
            found = worker.run("m", given)
            pairs = zip(NAMES[square], found.values(), net.run(given), strict=True)
            for spelling, y, wanted in pairs:
                assert_equal(y, wanted, limit, f"{spelling} of {name} for {sizes}")


@pytest.mark.parametrize("with_library", [True, False], ids=["library", "bodies"])
def test_masked_rows_where_onnx_runtime_runs_the_function_of_attention(
    with_library: bool, tmp_path: Path
) -> None:
    """It has no kernel for it from opset 25 on, and the function takes another row for masked."""
    names = [name for name in NAMES[False] if name.startswith("Attention")]
    net = net_of(False, 25, "Attention")
    onnx.save(net.model, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(tmp_path, keep="all", verify=False))
    path = Path(str(report.output))
    ops = [node.op_type for node in onnx.load(path).graph.node]
    assert sum(op.startswith("FusedAttention") for op in ops) == len(names)
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so") if with_library else None)
        for sizes, (name, low) in itertools.product(SIZES[:3], LOW.items()):
            given = feeds(sizes, low)
            found = worker.run("m", given).values()
            for spelling, y, wanted in zip(names, found, net.run(given), strict=True):
                what = f"{spelling} of {name} for {sizes}"
                assert_equal(y, wanted, TOLERANCE.exact, what)


@pytest.mark.parametrize("with_library", [True, False], ids=["library", "bodies"])
def test_scores_that_are_no_numbers_are_what_onnx_runtime_makes_of_them(
    with_library: bool, results: dict[bool, tuple[Net, Path, float]]
) -> None:
    """A query that is NaN, and a key that scores +inf or -inf, by the query: also under a guard.

    Not in operators that add what masks a key, whose NaN shows then (see docs/verification.md).
    """
    net, path, limit = results[False]
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so") if with_library else None)
        for sizes, low in itertools.product(SIZES, (-np.inf, LOWEST)):
            given = feeds(sizes, low)
            given["q"][0, 0, sizes[1] // 2] = np.nan
            given["k"][-1, -1, sizes[2] // 2, 0] = np.inf
            found = worker.run("m", given)
            pairs = zip(NAMES[False], found.values(), net.run(given), strict=True)
            for spelling, y, wanted in pairs:
                if not ("of keep" in spelling or "order 1" in spelling):
                    assert_equal(y, wanted, limit, f"{spelling} of {low} for {sizes}")


def with_past(opset: int) -> tuple[Net, list[str]]:
    """Operators that join past keys, or are told how many there are."""
    net, names, outs = Net(opset), [], []
    for x in "qkv":
        net.input(x, "n", H, "s", D)
        net.input(f"flat_{x}", "n", "s", H * D)
    for x in ("past_k", "past_v"):
        net.input(x, "n", H, "p", D)
    for mask, dtype in (("m", DType.F32), ("keep", DType.BOOL)):
        parts = [net.input(f"{mask}_{x}", "n", 1, "s", x, dtype=dtype) for x in "ps"]
        net("Concat", *parts, axis=-1, name=mask)
    net.ids("count", "n")
    net.input("last", "n", dtype=DType.I32)
    net.input("total", 1, dtype=DType.I32)
    joined = [net("Concat", f"past_{x}", x, axis=2) for x in "kv"]
    for mask, order in itertools.product(("m", "keep"), (0, 1)):
        made = net.many("Attention", 3, *"qkv", mask, "past_k", "past_v", is_causal=order)
        outs += [made[0], net("Attention", "q", *joined, mask, "", "", "count", is_causal=order)]
        names += [f"Attention of {mask} {order} {end}" for end in ("with past", "of a count")]
    for cap in (0.0, 2.0):
        given = (
            "flat_q",
            "flat_k",
            "flat_v",
            "past_k",
            "past_v",
            "last",
            "total",
            "",
            "",
            "",
            "m",
        )
        attrs = {"domain": "com.microsoft", "num_heads": H, "kv_num_heads": H, "softcap": cap}
        outs.append(net.many("GroupQueryAttention", 3, *given, **attrs)[0])
        names.append(f"GroupQueryAttention {cap}")
    net.graph(*outs)
    return net, names


@pytest.mark.parametrize("opset", [24, 25])
def test_masked_rows_behind_past_keys_are_what_onnx_runtime_makes_of_them(
    opset: int, tmp_path: Path
) -> None:
    net, names = with_past(opset)
    onnx.save(net.model, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(tmp_path, keep="all", verify=False))
    path = Path(str(report.output))
    ops = [node.op_type for node in onnx.load(path).graph.node]
    assert (
        sum(op.startswith("FusedAttention") for op in ops) == len(names) and "Attention" not in ops
    )
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so"))
        sizes = ((2, 1, 6), (1, 5, 20), (1, 30, 3), (1, 3, 300))
        for (items, rows, past), low in itertools.product(sizes, LOW.values()):
            keys = rows + past
            masks = feeds((items, rows, keys), low)
            given = {
                "total": np.array([keys], np.int32), "last": np.full(items, keys - 1, np.int32),
                "count": np.arange(items) * (keys // 2),
            }  # fmt: skip
            for mask in ("m", "keep"):
                given[f"{mask}_p"], given[f"{mask}_s"] = np.split(masks[mask], [past], -1)
            for seed, x in enumerate("qkv"):
                given[x] = normal(items, H, rows, D, seed=seed) + 2 * (x == "v")
                given[f"flat_{x}"] = normal(items, rows, H * D, seed=seed) + 2 * (x == "v")
            for x in ("past_k", "past_v"):
                given[x] = normal(items, H, past, D, seed=7) + 2 * (x == "past_v")
            found = worker.run("m", given).values()
            for name, y, wanted in zip(names, found, net.run(given), strict=True):
                what = f"{name} of {low} for {items}, {rows}, {past}"
                assert_equal(y, wanted, TOLERANCE.exact, what)
