"""Programs over caches whose items have lengths of their own, for the runtime's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tests.runtime.support import Case
from tracea_graph.ir import DType, TensorSpec
from tracea_graph.kernels.cpu.lowering.lower import lower
from tracea_graph.ops import OPS, OpParams
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.kv_cache_append import KvCacheAppendParams
from tracea_graph.ttg import Region, TileGraph

__all__ = ["cache_cases"]

Shape = tuple[int | str, ...]
TYPES: dict[str, tuple[DType, npt.DTypeLike]] = {
    "f32": (DType.F32, np.float32), "f16": (DType.F16, np.float16),
    "bf16": (DType.BF16, ml_dtypes.bfloat16), "i8": (DType.I8, np.int8),
}  # fmt: skip
"""Element types of caches by name."""


def lowered(
    name: str, params: OpParams, shapes: Sequence[Shape], places: Sequence[int], error: str = "",
    **sizes: int,
) -> Case:  # fmt: skip
    """An op whose operand of shape ``[b]`` are places, and of shape ``[p]`` slots.

    Caches, the operands of rank 4 behind the first, are of the type that the op says.
    """
    kinds = {("b",): DType.I64, ("p",): DType.BOOL}
    cached, kind = TYPES[getattr(params, "stored", "f32")]
    held = [n > 0 and len(s) == 4 for n, s in enumerate(shapes)]
    types = [cached if h else DType.F32 for h in held]
    specs = [TensorSpec(kinds.get(s, t), s) for s, t in zip(shapes, types, strict=True)]
    names = [f"i{n}" for n in range(len(shapes))]
    op = next(o for o, kind in OPS if isinstance(params, kind))
    region = Region("region", op, tuple(names), ("y",), (), params)
    graph = TileGraph([region], names, ["y"], {}, dict(zip(names, specs, strict=True)))
    feeds = [feed(shape, places, seed, sizes) for seed, shape in enumerate(shapes)]
    feeds = [a.astype(kind) if h else a for a, h in zip(feeds, held, strict=True)]
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in feeds]
    expected = () if error else tuple(params.reference(wide))
    return Case(name, lower(graph, region), tuple(feeds), expected, error)


def feed(shape: Shape, places: Sequence[int], seed: int, sizes: dict[str, int]) -> Any:
    if shape == ("b",):
        return np.asarray(places, np.int64)
    dims = [sizes[d] if isinstance(d, str) else d for d in shape]
    if shape == ("p",):
        return np.zeros(dims, bool)
    return np.random.default_rng([seed, *dims]).standard_normal(dims).astype(np.float32)


def appended(
    name: str, places: Sequence[int], rows: int, held: int | None, room: int, error: str = "",
    layout: str = "rows", **more: Any,
) -> Case:  # fmt: skip
    params = KvCacheAppendParams(2, 24, 5, 60, past=held is not None, layout=layout, **more)
    past: list[Shape] = [] if held is None else [("b", 2, "t", 24)]
    new: dict[str, Shape] = {
        "rows": ("b", "s", 60), "split": ("b", "s", 2, 24), "heads": ("b", 2, "s", 24)
    }  # fmt: skip
    shapes = [new[layout], *past, ("b",), ("p",)]
    sizes = {"b": len(places), "s": rows, "t": held or 0, "p": room}
    return lowered(f"append_{name}", params, shapes, places, error, **sizes)


def attended(
    name: str, places: Sequence[int], rows: int, room: int, error: str = "", **more: Any
) -> Case:
    params = AttentionParams(
        4, 16, 32, 0.25, kv_heads=2, causal="placed", widths=(64, 0, 0),
        layouts=("rows", "heads", "heads", "rows"), **more,
    )  # fmt: skip
    shapes: list[Shape] = [("b", "s", 64), ("b", 2, "p", 16), ("b", 2, "p", 32), ("b",)]
    sizes = {"b": len(places), "s": rows, "p": room}
    return lowered(f"attention_placed_{name}", params, shapes, places, error, **sizes)


def narrow_cases(stored: str) -> tuple[Case, ...]:
    """Append to caches of another type than float32, and attend to them."""
    more = {"stored": stored}
    return (
        appended(f"{stored}_prompt", (0, 0), 37, None, 37, **more),
        appended(f"{stored}_one_each", (7, 0, 90), 1, 90, 91, **more),
        appended(f"{stored}_in_place", (7, 3), 1, 90, 90, **more),
        appended(f"{stored}_large", (3000, 5), 700, 3000, 3700, **more),
        attended(f"{stored}_prompt", (0, 0), 70, 70, **more),
        attended(f"{stored}_one_each", (7, 0, 299), 1, 300, **more),
        attended(f"{stored}_few", (7, 40), 3, 300, **more),
        attended(f"{stored}_near", (100, 3), 60, 300, window=(16, 0), **more),
    )


def cache_cases() -> tuple[Case, ...]:
    return (
        appended("prompt", (0, 0), 37, None, 37),
        appended("prompt_in_a_long_cache", (0, 0), 5, 90, 90),
        appended("one_each", (7, 0, 90), 1, 90, 91),
        appended("in_place", (7, 3), 1, 90, 90),
        appended("chunk", (40,), 30, 64, 70),
        appended("large", (3000, 5), 700, 3000, 3700),
        appended("nothing", (4, 2), 0, 5, 5),
        *(
            appended(f"{layout}_{stored}", (7, 0), 3, 90, 100, layout=layout, stored=stored)
            for layout in ("split", "heads")
            for stored in ("f32", "f16")
        ),
        appended("too_far", (8,), 3, 10, 10, "begins at row 8 of a cache of 10"),
        appended("beyond_what_is_held", (8,), 1, 7, 10, "begins at row 8"),
        appended("before_the_first", (0, -1), 1, 9, 10, "begins at row -1"),
        *(case for stored in ("f16", "bf16", "i8") for case in narrow_cases(stored)),
        attended("prompt", (0, 0), 70, 70),
        attended("prompt_in_a_long_cache", (0, 0), 5, 300),
        attended("one_each", (7, 0, 299), 1, 300),
        attended("few", (7, 40), 3, 300),
        attended("chunk", (100,), 60, 300),
        attended("near", (100, 3), 60, 300, window=(16, 0)),
        attended("one_near", (100, 3, 20), 1, 300, window=(16, 0)),
        attended("capped", (12, 3), 9, 30, softcap=2.0),
        attended("too_far", (8,), 3, 10, "begins at row 8 of a cache of 10"),
        attended("before_the_first", (0, -1), 1, 9, "begins at row -1"),
    )
