"""Values without elements: every kernel and layout change gives what ONNX Runtime gives, and no
result holds what was in memory before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.cases import Array
from tests.runtime.empty_cases import Empty, empty_cases
from tests.sanitizers.harness import Answer, Sanitizer
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.kernels.cpu.schema_header import is_arm_call

pytestmark = pytest.mark.compiler
ISAS = host_levels("bf16")
LEVELS = tuple(dict.fromkeys((ISAS[:2][-1], ISAS[-1])))
"""The narrowest level with vectors and the widest; the others have the same templates."""
FILLS = (0xFF, 0x4B)
"""What all memory holds before a run: NaN, or 1.3e7."""


@pytest.fixture(
    scope="module",
    params=[*(pytest.param(n, marks=pytest.mark.slow) for n in LEVELS[:-1]), LEVELS[-1]],
)
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sanitizer:
    cases = [one.case for one in empty_cases()]
    return Sanitizer((), cases, (request.param,), tmp_path_factory.mktemp("empty"))


def test_the_cases_run_every_call() -> None:
    run = {call.name for one in empty_cases() for call in one.case.program.calls}
    assert run == {name for name, call in CALLS.items() if not is_arm_call(call)}
    assert sum(_has_numbers(one) for one in empty_cases()) > 500


def _has_numbers(one: Empty) -> bool:
    return one.expected is not None and any(y.size for y in one.expected)


def test_answers_are_those_of_onnx_runtime(host: Sanitizer) -> None:
    cases, (level,) = empty_cases(), host.library.levels
    jobs = [(one.case, encode(one.case.program)) for one in cases]
    first, second = (host.run(jobs, level, workers=2, fill=fill) for fill in FILLS)
    found = map(_trouble, cases, first, second)
    wrong = [f"{one.case.name}: {why}" for one, why in zip(cases, found, strict=True) if why]
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:20])


def _trouble(one: Empty, first: Answer, second: Answer) -> str:
    """What is wrong with an answer; empty if nothing is."""
    if isinstance(first, str) or isinstance(second, str):
        return "" if one.expected is None else str(first)
    if any(a.tobytes() != b.tobytes() for a, b in zip(first, second, strict=True)):
        return "shows what was in memory"
    if one.expected is None:
        return ""
    errors = [_error(y, wanted) for y, wanted in zip(first, one.expected, strict=True)]
    return "" if max(errors, default=0) <= one.limit else f"off by {max(errors):.1e}"


def _error(y: Array, wanted: Array) -> float:
    """The largest error, as a share of max|y|; infinite where shapes differ."""
    if y.shape != wanted.shape:
        return np.inf
    apart = y != wanted
    off = np.abs(y.astype(np.float64)[apart] - wanted[apart]).max(initial=0)
    return float(off / max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1e-3))
