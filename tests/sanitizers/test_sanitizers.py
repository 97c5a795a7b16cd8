"""All kernels and the runtime under sanitizers: no stray access, no undefined step, no race."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from tests.runtime.bf16_cases import bf16_cases
from tests.runtime.cases import all_cases
from tests.runtime.conv_bf16_cases import all_bf16_cases
from tests.runtime.conv_bf16x2_cases import conv_bf16x2_cases
from tests.runtime.conv_cases import all_conv_cases
from tests.runtime.conv_int16_cases import conv_int16_cases
from tests.runtime.empty_cases import empty_cases
from tests.runtime.linked_cases import linked_block
from tests.runtime.linked_images import linked_images
from tests.runtime.support import Case, mutate
from tests.sanitizers.harness import Job, Sanitizer, conforms, kernels_in
from tracea_graph.config import TOLERANCE
from tracea_graph.kernels.cpu.exported_functions import KERNELS
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.plan_encoding import encode

pytestmark = [pytest.mark.compiler, pytest.mark.sanitizer]
ISAS = host_levels()
LEVELS = host_levels("bf16")
BROAD = tuple(dict.fromkeys((LEVELS[:2][-1], LEVELS[-1])))
"""The narrowest level with vectors and the widest; the others have the same templates."""
TRANSFORMED = 2.0**-9
"""Of max|y|, where Winograd's transform is rounded to integers."""
ROUNDED = 2.0**-8
"""Of max|y|, where values in bf16 may fall to the other side of a number half way."""
EITHER = 2.0**-6
"""Of max|y|, where a transform in bf16 may stand for direct summation."""
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
THREADS = ("-fsanitize=thread",)
SHARED = (
    "gemm_chain_37x72_layout0", "gemm_then_norm", "elementwise_large", "attention_boolean",
    "attention_ordered_150_of_150", "attention_1_of_300", "embedding_int64_2x5",
    "int16_chain_wide", "bf16x2_chain_wide",
)  # fmt: skip


@cache
def rounding() -> dict[str, Case]:
    """Return the cases in bf16, of convolutions every third."""
    cases = (*bf16_cases(), *all_bf16_cases()[::3], *conv_bf16x2_cases()[::2])
    return {case.name: case for case in cases}


@cache
def empty() -> tuple[Case, ...]:
    return tuple(one.case for one in empty_cases())


@cache
def whole() -> tuple[Case, ...]:
    """Return all cases that have elements.

    They take seconds to make, which runs that only collect these tests need not wait for.
    """
    return (*all_cases(), *all_conv_cases(), *conv_int16_cases(), *rounding().values())


def links(flag: str) -> bool:
    """True if g++ has the sanitizer's library."""
    command = ["g++", flag, "-x", "c++", "-", "-o", "/dev/null"]
    code = "int main() { return 0; }"
    try:
        return not subprocess.run(command, input=code, text=True, capture_output=True).returncode
    except FileNotFoundError:
        return False


def jobs(cases: Sequence[Case]) -> list[Job]:
    return [(case, encode(case.program)) for case in cases]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(BROAD, id="broad"),
        pytest.param(LEVELS, id="all", marks=pytest.mark.slow),
    ],
)
def memory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sanitizer:
    if not links(MEMORY[0]):
        pytest.skip("g++ has no address sanitizer here")
    return Sanitizer(
        MEMORY, (*whole(), *empty()), request.param, tmp_path_factory.mktemp("memory")
    )


def test_the_cases_run_every_kernel() -> None:
    assert kernels_in(whole()) == KERNELS.keys()


def test_no_kernel_leaves_its_memory(memory: Sanitizer) -> None:
    for level in memory.library.levels:
        answers = memory.run(jobs(whole()), level, workers=2)
        for case, answer in zip(whole(), answers, strict=True):
            conforms(case, answer, limit(case))


def test_no_kernel_leaves_memory_that_holds_nothing(memory: Sanitizer) -> None:
    """Values without elements lie nowhere; tests/runtime/test_empty.py looks at the answers."""
    for level in memory.library.levels:
        memory.run(jobs(empty()), level, workers=2)


def limit(case: Case) -> float:
    if case.name in rounding():
        return EITHER if case.name.startswith("either") else ROUNDED
    least = max(TOLERANCE.exact, case.tolerance)
    return TRANSFORMED if "winograd2_int16" in case.name else least


def mutants(count: int) -> list[Job]:
    """Plans that are wrong somewhere, of every case in turn."""
    chance = random.Random(count)
    cases = itertools.islice(itertools.cycle(whole()), count)
    return [(case, mutate(encode(case.program), chance)) for case in cases]


@pytest.mark.parametrize(
    "count", [1000, pytest.param(20_000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_no_plan_makes_a_kernel_leave_its_memory(count: int, memory: Sanitizer) -> None:
    answers = memory.run(mutants(count), LEVELS[-1])
    refused = [answer for answer in answers if isinstance(answer, str)]
    assert len(refused) > count // 2
    assert all(answer.endswith(".") or "tensor" in answer for answer in refused)


def test_concurrent_runs_share_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    if not links(THREADS[0]):
        pytest.skip("g++ has no thread sanitizer here")
    cases = [case for case in whole() if case.name in SHARED]
    assert len(cases) == len(SHARED)
    racing = Sanitizer(THREADS, cases, ISAS[-1:], tmp_path_factory.mktemp("threads"))
    answers = racing.run(jobs(cases), ISAS[-1], workers=3, together=4, repeats=5)
    for case, answer in zip(cases, answers, strict=True):
        conforms(case, answer, TOLERANCE.exact)


def with_barriers(case: Case, *calls: int, threads: int) -> Case:
    """Return a case in which so many threads wait for each other before some calls."""
    chosen = [
        replace(call, barrier_from=threads if i in calls else 65)
        for i, call in enumerate(case.program.calls)
    ]
    return replace(case, program=replace(case.program, calls=tuple(chosen)))


def test_linked_calls_touch_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links(THREADS[0]):
        pytest.skip("g++ has no thread sanitizer here")
    monkeypatch.setenv("TRACEA_PROCESSORS", "5")
    cases = [linked_block(), linked_block(m=96, heads=2, d=32)]
    cases += [
        with_barriers(linked_block(), 2, 4, threads=5),
        with_barriers(linked_block(), 4, threads=6),
    ]
    cases += [linked_images(), linked_images((33, 9), 16, 48), linked_images((7, 7), 64, 96)]
    cases = [replace(case, name=f"{case.name}_{i}") for i, case in enumerate(cases)]
    racing = Sanitizer(THREADS, cases, ISAS[-1:], tmp_path_factory.mktemp("linked"))
    for spins, groups in ((True, ""), (False, ""), (True, "0/1"), (False, "0/1")):
        monkeypatch.setenv("TRACEA_GROUPS", groups)  # of processors
        answers = racing.run(jobs(cases), ISAS[-1], workers=5, together=1, repeats=8, spins=spins)
        for case, answer in zip(cases, answers, strict=True):
            conforms(case, answer, TOLERANCE.exact)


def test_linked_stages_keep_how_they_are_timed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of a stage run after the loop that handed them out has gone on, timed and watched."""
    if not links(MEMORY[0]):
        pytest.skip("g++ has no address sanitizer here")
    folder, case = tmp_path_factory.mktemp("stages"), linked_images((14, 14), 256, 256)
    monkeypatch.setenv("TRACEA_PROCESSORS", "8")
    monkeypatch.setenv("TRACEA_TIMEOUT", "100")
    monkeypatch.setenv("TRACEA_TIMELINE", str(folder / "timeline"))
    checked = Sanitizer(MEMORY, [case], ISAS[-1:], folder)
    for answer in checked.run(jobs([case]), ISAS[-1], workers=8, together=1, repeats=8):
        conforms(case, answer, TOLERANCE.exact)
    assert (folder / "timeline").read_text()
