"""Cases of attention of 8-bit integers in one launch, with all its roundings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.gpu.cases import TOLERANCE, Case, Expected, Made, Maker, repeated, wide
from tests.kernels.gpu.machine import NUMPY, Array, Memory
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.families.quantized_attention import chain_of_part
from tracea_graph.ops.chain import Chain, Step

__all__ = ["CASES", "added_scores", "attended", "masked_scores", "rounded_scores"]

_BY_HEADS = (0, 2, 1, 3)
_FIRST, _SCALE, _SECOND = 0.5786650776863098, 5.656854152679443, 0.10229449719190598
"""Steps of scores before and after they are divided, as a quantizer chose them."""
_UNIT = float(np.float32(1 / 255))


def rounded_scores(dtype: DType) -> Chain:
    """Scores that are rounded, divided, rounded, added to a row, and rounded again."""
    steps = (
        Step("div", (0, _FIRST)), Step("round", (2,)), Step("saturate", (3, -138.0, 117.0)),
        Step("mul", (4, _FIRST)), Step("div", (5, _SCALE)), Step("div", (6, _SECOND)),
        Step("round", (7,)), Step("saturate", (8, -138.0, 117.0)), Step("mul", (9, _SECOND)),
        Step("add", (10, 1)), Step("div", (11, _SECOND)), Step("round", (12,)),
        Step("saturate", (13, -138.0, 117.0)), Step("mul", (14, _SECOND)),
    )  # fmt: skip
    return Chain(("full", "row"), steps, (15,), (), (dtype,))


def masked_scores(dtype: DType) -> Chain:
    """Scores that a truth value of each query and key keeps, plus bytes of each key, rounded."""
    steps = (
        Step("sub", (1, 3.0)), Step("mul", (3, -0.25)), Step("mul", (0, 0.25)),
        Step("where", (2, 5, -60.0)), Step("add", (6, 4)), Step("div", (7, 0.25)),
        Step("round", (8,)), Step("saturate", (9, -200.0, 55.0)), Step("mul", (10, 0.25)),
    )  # fmt: skip
    types = (DType.F32, DType.U8, DType.BOOL)
    return Chain(("full", "row", "full"), steps, (11,), types, (dtype,))


def added_scores(dtype: DType) -> Chain:
    """Scores without bounds: products times a factor, plus a row."""
    steps = Step("mul", (0, 0.125)), Step("add", (2, 1))
    return Chain(("full", "row"), steps, (3,), (), (dtype,))


def attended(
    dtype: DType, sizes: tuple[int, int, int, int], heads: tuple[int, int], chain: Chain | None,
    form: str, by_rows: bool = True,
) -> Maker:  # fmt: skip
    """Batch, heads, queries, keys; head sizes of keys and values.

    Heads lie in the columns of rows if ``by_rows``.
    """
    batch, count, queries, keys = sizes
    order = _BY_HEADS if by_rows else ()

    def make(memory: Memory, rng: np.random.Generator) -> Made:
        own, full = NUMPY[dtype], (batch, count, queries, keys)
        q = rng.integers(-16, 17, (batch, count, queries, heads[0])) / 4
        k = rng.integers(-16, 17, (batch, count, keys, heads[0])) / 4
        v = rng.integers(-120, 121, (batch, count, keys, heads[1])) / 64
        q, k, v = (a.astype(own) for a in (q, k, v))
        inputs = _inputs(rng, chain, full)
        result = {"u8": np.uint8, "i8": np.int8}.get(form, own)
        y = memory.empty((batch, count, queries, heads[1]), result, order=order)
        flat = (batch * count * queries, keys)
        scores, weights = (memory.empty(full, own) for _ in "sw")
        score_rows, weight_rows = (memory.empty(flat, own) for _ in "sw")
        numbers = _form(form)
        call = CALLS.make(
            "quantized_attention", dtype.short, q=memory.put(q, order=order),
            k=memory.put(k, order=order), v=memory.put(v, order=order),
            inputs=[repeated(memory.put(a), full) for a in inputs], scores=scores,
            score_rows=score_rows, weight_rows=weight_rows, weights=weights, y=y, chain=chain,
            part="values", weight_step=_UNIT, weight_low=0.0, weight_high=255.0, form=form,
            **numbers,
        )  # fmt: skip

        def expected() -> list[Expected]:
            sums = wide(q) @ np.swapaxes(wide(k), 2, 3)
            free = None if chain is None else Chain(chain.operands, chain.steps, chain.results,
                                                    chain.dtypes)  # fmt: skip
            scored = sums if free is None else free.reference([sums, *map(wide, inputs)])[0]
            share = np.exp(scored - scored.max(3, keepdims=True))
            share = share / share.sum(3, keepdims=True)
            between = np.clip(np.rint(share / _UNIT), 0, 255) * _UNIT
            value = between @ wide(v)
            last = chain_of_part("values", form, **numbers, dtype=dtype.short)
            if last is not None:
                last = Chain(last.operands, last.steps, last.results)
                (value,) = last.reference([value])
            # a weight at a tie may be rounded to the next step, and a result too
            step = numbers["step"] if form == "steps" else float(form in ("u8", "i8"))
            flipped = max(1.01 * step, 1.01 * _UNIT * float(np.abs(wide(v)).max()))
            return [Expected(y, value, TOLERANCE[dtype] + flipped / float(np.abs(value).max()))]

        return call, expected

    return make


def _form(form: str) -> dict[str, float]:
    if form == "plain":
        return {"factor": 0.5, "step": 1.0, "zero": 0.0, "low": 0.0, "high": 0.0}
    zero, low = {"u8": (134.0, 0.0), "i8": (-3.0, -128.0), "steps": (0.0, -100.0)}[form]
    return {"factor": 1.0, "step": 0.0247906782, "zero": zero, "low": low, "high": low + 255}


def _inputs(rng: np.random.Generator, chain: Chain | None, full: tuple[int, ...]) -> list[Array]:
    """What scores are combined with: truth values of all, numbers of each key."""
    made = list[Array]()
    listed = zip(chain.operands, chain.operand_types, strict=True) if chain else ()
    for kind, dtype in list(listed)[1:]:
        shape = full if kind == "full" else (full[0], 1, 1, full[3])
        if dtype is DType.BOOL:
            made.append(rng.random(shape) < 0.8)
        elif dtype is DType.U8:
            made.append(rng.integers(0, 9, shape).astype(np.uint8))
        else:
            made.append(np.where(rng.random(shape) < 0.3, -1e4, 0).astype(np.float32))
    return made


def _cases() -> Iterator[Case]:
    f16, bf16 = DType.F16, DType.BF16
    both, many = ("64x128", "64x256"), ("64x256",)
    twice = ("128x64x8",)
    for name, made, tiles in (
        ("u8", attended(f16, (2, 3, 70, 90), (32, 32), rounded_scores(f16), "u8"), both),
        ("i8", attended(f16, (1, 2, 130, 200), (64, 48), masked_scores(f16), "i8"), many),
        ("u8 of rows", attended(f16, (3, 2, 128, 128), (64, 64), rounded_scores(f16), "u8"),
         both[:1]),
        ("steps", attended(bf16, (1, 3, 33, 65), (40, 24), masked_scores(bf16), "steps", False),
         both[:1]),
        ("plain", attended(f16, (2, 1, 9, 1), (16, 64), None, "plain", False), both[:1]),
        ("many u8", attended(f16, (1, 2, 200, 601), (64, 64), rounded_scores(f16), "u8"), twice),
        ("many i8", attended(f16, (1, 2, 130, 300), (64, 48), masked_scores(f16), "i8"), twice),
        ("many steps", attended(f16, (2, 2, 64, 257), (40, 64), added_scores(f16), "steps"),
         twice),
        ("many plain", attended(bf16, (2, 1, 70, 65), (16, 32), None, "plain", False), twice),
    ):  # fmt: skip
        yield Case(f"quantized attention {name}", made, tiles, ("wgmma",))


CASES = tuple(_cases())
