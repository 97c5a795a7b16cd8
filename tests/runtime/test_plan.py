"""The plan format: its words, and what cannot be encoded."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.runtime.cases import gemm_chain, gemm_then_norm
from tests.runtime.support import dense, single, spec
from tracea_graph.errors import GraphError
from tracea_graph.ir import Expr
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.plan_encoding import LIMITS, MAGIC, VERSION, decode, encode
from tracea_graph.kernels.program import Loop, Program

NORM = CALLS.make(
    "norm", x=dense("input", 0, "m", 4), y=dense("output", 0, "m", 4), kind="rms", epsilon=0.5
)
PROGRAM = single(NORM, [spec("m", 4)], [spec("m", 4)], m=(0, 0))


def test_the_words_of_a_small_plan() -> None:
    half = struct.unpack("<q", struct.pack("<d", 0.5))[0]
    m, four, zero, one = (2, 1, 0), (2, 0, 4), (2, 0, 0), (2, 0, 1)
    tensor = (1, 2, *m, *four)
    view = (2, *zero, *m, *four, *four, *one)
    call = (2, 1, 1, 5, 0, 2, -1, 1, half, 0, 0, *view, -1, -1, 1, 0, *view, -1)
    body = (1, 1, 1, 0, 0, 1, *tensor, *tensor, 0, 0, *call)
    assert encode(PROGRAM) == (MAGIC, VERSION, len(body) + 3, *body)


def test_the_words_of_a_loop() -> None:
    """Four rows per iteration, one after another; its symbols are numbered after the bound one."""
    rows = Expr("sub", ("end", "start"))
    turn = replace(dense("input", 0, rows, 4), offset=Expr("mul", ("start", 4)))
    call = replace(
        NORM, views=(turn, None, None, replace(turn, buffer=NORM.views[3].buffer), None)
    )
    looped = replace(PROGRAM, calls=(call,), loops=(Loop(0, 0, "m", 4, "start", "end"),))
    words = encode(looped)
    assert words[3:9] == (1, 1, 1, 1, 0, 1)
    assert words[27:34] == (0, 0, 4, 0, 2, 1, 0)
    assert any(words[i : i + 5] == (5, 1, 2, 1, 1) for i in range(len(words)))
    with pytest.raises(GraphError, match="'start', which none of its inputs"):
        encode(replace(looped, loops=()))


def test_the_words_of_loose_axes() -> None:
    """Bits above an input's rank, which the library refuses beyond it."""
    loose = replace(PROGRAM, loose=frozenset([(0, 0)]))
    words, plain = encode(loose), encode(PROGRAM)
    assert words[10] == plain[10] + 16 and (words[:10], words[11:]) == (plain[:10], plain[11:])
    assert decode(words).loose == loose.loose and decode(words).inputs == decode(plain).inputs
    assert decode(plain).loose == frozenset()


def test_plans_stay_as_they_were(golden: Callable[[str, str], None]) -> None:
    plans = (encode(gemm_then_norm().program), encode(gemm_chain().program))
    golden("plans.txt", "".join(" ".join(map(str, plan)) + "\n" for plan in plans))


def test_expressions_are_postfix() -> None:
    size = Expr("ceildiv", (Expr("mul", ("m", 4)), 3))
    words = encode(replace(PROGRAM, outputs=(spec(size),)))
    code = (8, 1, 0, 0, 4, 4, 0, 3, 6)
    assert any(words[i : i + len(code)] == code for i in range(len(words)))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (replace(PROGRAM, symbols={}), "'m', which none of its inputs"),
        (replace(PROGRAM, calls=(replace(NORM, op="fft"),)), "There is no kernel call 'fft'"),
        (replace(PROGRAM, calls=(NORM,) * (LIMITS["calls"] + 1)), "at most 4096 calls"),
        (replace(PROGRAM, inputs=(replace(spec("m", 4), dtype=None),)), "fully typed"),
        (replace(PROGRAM, outputs=(spec(*[1] * 9),)), "at most 8 rank"),
    ],
)
def test_what_cannot_be_encoded(program: Program, words: str) -> None:
    with pytest.raises(GraphError, match=words):
        encode(program)
