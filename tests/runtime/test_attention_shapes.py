"""Attention of every kind as whole programs of symbolic sizes: masks that are boolean or added, of
keys, of queries and keys, of heads, with rows that see nothing; orders; shared and crossing
heads of 16 to 256 numbers; float32 and bf16.  A table in which any two of these properties meet,
and one query over up to 4096 keys.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.pairwise import pairwise
from tests.runtime.answers import assert_threads_agree
from tests.runtime.shapes import by_precision, named_errors
from tests.runtime.support import Case, normal, operator_case, spec
from tracea_graph.ir import DType, Extent
from tracea_graph.ops.attention import LOWEST, ZERO_ROWS, AttentionParams

LOW = {"-inf": -np.inf, "lowest": LOWEST, "-3e38": float(np.float32(-3e38))}
"""What a masked key scores."""
ROUNDED = 2.0**-7
"""Of max|y| in bf16: weights of the softmax are rounded, to 2^-9, and values outweigh y."""
MASKS: dict[str, tuple[str, tuple[Extent, ...]]] = {
    "none": ("none", ()),
    "added to keys": ("add", ("b", 1, 1, "t")),
    "added": ("add", ("b", 1, "s", "t")),
    "added to heads": ("add", (1, "heads", "s", "t")),
    "bool of keys": ("bool", ("b", 1, 1, "t")),
    "bool": ("bool", (1, 1, "s", "t")),
    "bool of queries": ("bool", ("b", 1, "s", 1)),
}
FACTORS = {
    "mask": tuple(MASKS),
    "lost": ("-inf", "lowest", "-3e38"),
    "zero_rows": ZERO_ROWS,
    "causal": ("none", "top", "bottom"),
    "heads": ((1, 1), (4, 4), (4, 1), (6, 2), (3, 3)),
    "head": (16, 24, 64, 80, 96, 128, 17, 256),
    "head_v": ("same", 16, 40, 128),
    "queries": (1, 2, 8, 13, 70),
    "keys": (1, 16, 17, 33, 150, 300),
    "layouts": ("rows", "heads", "split", "transposed"),
    "more": ("plain", "softcap", "window"),
    "numbers": ("f32", "bf16", "rounded"),
}
PAST = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 255, 513, 1023, 1025, 2048, 4095, 4096)


def attention_case(row: dict[str, Any], batch: int = 2) -> Case:
    """One row of the table; what bf16 cannot hold is in float32, what has no meaning left out."""
    (heads, shared), head, rows, keys = row["heads"], row["head"], row["queries"], row["keys"]
    head_v = head if row["head_v"] == "same" else row["head_v"]
    kind = row["layouts"]
    in_bf16 = row["numbers"] != "f32" and kind != "transposed" and head % 2 == head_v % 2 == 0
    layouts = {"transposed": ("heads", "transposed", "heads", "heads")}.get(kind, (kind,) * 4)
    low = LOW[row["lost"]]
    near = (5, 3) if row["causal"] == "none" else (8, 0)
    params = AttentionParams(
        heads, head, head_v, head**-0.5, MASKS[row["mask"]][0], kv_heads=shared, layouts=layouts,
        widths=(heads * head, shared * head, shared * head_v) if kind == "rows" else (0, 0, 0),
        fill=low, zero_rows=row["zero_rows"],
        causal=row["causal"], in_bf16=in_bf16, whole=in_bf16 and row["numbers"] == "rounded",
        softcap=3.0 if row["more"] == "softcap" else 0.0,
        window=near if row["more"] == "window" else None,
    )  # fmt: skip
    sizes = {"b": batch, "s": rows, "t": keys, "heads": heads}
    shapes = [
        lie(layout, *of) for layout, of in zip(
            layouts, (("s", heads, head), ("t", shared, head), ("t", shared, head_v)), strict=False
        )
    ]  # fmt: skip
    feeds = [normal(*(sizes.get(d, d) for d in s), seed=i) for i, s in enumerate(shapes)]  # type: ignore[misc, call-overload]
    specs = [spec(*shape) for shape in shapes]
    if params.mask != "none":
        shape = tuple(heads if d == "heads" else d for d in MASKS[row["mask"]][1])
        keep = np.random.default_rng(rows).random([sizes.get(d, d) for d in shape]) < 0.7  # type: ignore[misc, call-overload]
        keep.reshape(-1, keep.shape[-1])[::3] = False  # rows that see nothing
        bias = normal(*keep.shape, seed=9)
        feeds.append(keep if params.mask == "bool" else np.where(keep, bias, np.float32(low)))
        specs.append(spec(*shape, dtype=DType.BOOL if params.mask == "bool" else DType.F32))
    name = "_".join(str(v).replace(" ", "") for v in (*row.values(), in_bf16, batch))
    return operator_case(
        f"{'bf16' if in_bf16 else 'f32'}_{name}", "FusedAttention", params, specs, feeds
    )


def lie(layout: str, rows: str, heads: int, size: int) -> tuple[Extent, ...]:
    return {
        "rows": ("b", rows, heads * size),
        "split": ("b", rows, heads, size),
        "heads": ("b", heads, rows, size),
        "transposed": ("b", heads, size, rows),
    }[layout]  # type: ignore[return-value]


def table() -> Iterator[Case]:
    for row in pairwise(FACTORS):
        if row["causal"] == "bottom" and row["queries"] > row["keys"]:
            row = {**row, "queries": 1}  # a query before the first key
        yield attention_case(row)


def decoding() -> Iterator[Case]:
    """One query, and a few, over as many keys as a cache holds."""
    kinds = itertools.cycle(itertools.product(((4, 4), (6, 2), (4, 1)), (64, 80)))
    for keys, low in itertools.product(PAST, (False, True)):
        heads, head = next(kinds)
        numbers = ("bf16", "rounded")[keys % 2] if low else "f32"
        row = {"mask": "bool of keys" if keys % 2 else "none", "lost": "lowest",
               "zero_rows": "none", "heads": heads, "causal": "bottom",
               "head": head, "head_v": "same", "queries": 1 + keys % 3 // 2,
               "keys": keys, "layouts": "heads", "more": "plain", "numbers": numbers}  # fmt: skip
        yield attention_case(row, 1 + keys % 2)


def in_few_bits(case: Case) -> bool:
    return case.name.startswith("bf16")


@pytest.mark.parametrize("every_level", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("cases", [table, decoding])
def test_equals_reference(
    cases: Any, every_level: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = list(cases())
    for answers in by_precision(made, in_few_bits, tmp_path_factory, every_level=every_level):
        wrong = named_errors(
            answers, lambda c: ROUNDED if c.name.startswith("bf16") else c.tolerance
        )
        assert not wrong, "\n".join(wrong[:20])
        assert_threads_agree(answers)
