"""Whole models, drawn by hypothesis: a chain of steps that branches and meets again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress

import onnx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.attending import ATTENDING
from tests.fuzz.branching import BRANCHING
from tests.fuzz.draft import Draft, Unfit
from tests.fuzz.moving import MOVES
from tests.fuzz.pointwise import POINTWISE
from tests.fuzz.products import PRODUCTS
from tests.fuzz.quantizing import QUANTIZED
from tests.fuzz.rows import ROWS
from tests.fuzz.windows import WINDOWS

__all__ = ["drawn", "models"]

OPSETS = (17, 7, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 24, 25, 26)
_HEAVY = PRODUCTS + WINDOWS + ATTENDING
GROUPS = (_HEAVY, ATTENDING, WINDOWS, _HEAVY, POINTWISE, ROWS, MOVES, QUANTIZED, BRANCHING)


@st.composite
def models(draw: Callable[..., object]) -> onnx.ModelProto:
    """A valid model of one to a dozen steps."""
    opset = draw(st.sampled_from(OPSETS))
    draft = Draft(draw, st, opset, dynamic=draw(st.booleans()))  # type: ignore[arg-type]
    for _ in range(draft.number(1, 9)):
        step, mark = draft.choose(draft.choose(GROUPS)), draft.mark()
        try:
            step(draft)
        except Unfit:
            draft.reset(mark)
    if not draft.nodes:
        draft.reset((0,) * len(draft.mark()))
        x = draft.input(2)
        draft.add("Relu", [x], x.dims)
    made = {v for node in draft.nodes for v in node.output}
    read = {v for node in draft.nodes for v in node.input}
    values = [v for v in draft.values if v.name in made and v.type != "q"]
    ends = [v for v in values if v.name not in read] or values[-1:]
    shown = {v.name for v in draft.shown}
    middle = [v for v in values if v.name in read and (v.name in shown or draft.often(10))]
    if draft.often(5):
        middle += [v for v in draft.values if v.name[0] == "x"][:1]
    outputs = [*ends, *middle]
    if draft.often(30):
        outputs.reverse()
    if draft.dynamic and draft.often(40):
        with suppress(Unfit):
            draft.tangle()
    return draft.model(outputs)


def drawn(count: int, start: int) -> Iterator[onnx.ModelProto]:
    """``count`` different models, the same for the same ``start``."""
    known: set[bytes] = set()
    for number in itertools.count():
        model = _drawn(f"{start}/{number}")
        content = model.SerializeToString(deterministic=True)
        if content not in known:
            known.add(content)
            yield model
        if len(known) == count:
            return


def _drawn(start: str) -> onnx.ModelProto:
    """One model.  Of many under one seed most would be another with few changes."""
    found: list[onnx.ModelProto] = []

    @seed(start)
    @settings(
        max_examples=2, phases=[Phase.generate], database=None, deadline=None,
        report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(models())
    def collect(model: onnx.ModelProto) -> None:
        found.append(model)

    collect()
    return found[-1]  # the first is always the simplest of all
