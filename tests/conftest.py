"""Options and parameters the whole suite shares.

A test with an ``isa`` argument runs once per instruction-set level this CPU has; ``golden``
compares text with a file beside the test, or rewrites it under ``--update-golden``; ``fuzz_seed``
is 0, and in slow runs also each of ``--fuzz-seeds``, every one a test of its own.  Modules that
use the fixture ``highest_level`` optimize for that level alone.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import threadpoolctl
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.forked_workers import fork_workers
from tests.highest import highest_level
from tracea_graph.check import rewrite_selection
from tracea_graph.kernels.cpu import backend
from tracea_graph.kernels.cpu.isa_levels import TILES, host_levels
from tracea_graph.policy import Machine

# A rule that raises fails its test, instead of being left out with a warning.
os.environ.setdefault("TRACEA_STRICT", "1")
# An example is not wrong because the machine was busy meanwhile.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
# The processes that share the suite are as many as the processors: NumPy's own threads would only
# wait for each other.
threadpoolctl.threadpool_limits(1, user_api="blas")
# Most of what a worker takes in a test is to load ONNX Runtime.
fork_workers()
# A plan must not depend on how busy the machine was when it was measured, for five seconds.
backend.measured_machine = lambda environment, isa: Machine(tiles=isa == TILES)
# Beside other tests a machine is always busy; to find that out takes each choice half a second.
rewrite_selection.other_processes_busy = lambda seconds=0.1, share=0.2: False
# What a seed draws must not change with whatever the package's modules have for constants and
# which of them are loaded; and to read all of them takes every process seconds.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption(
        "--fuzz-seeds", default="1-2", metavar="A-B", help="seeds of the slow tests in tests/fuzz"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``isa`` at every level, one that takes ``fuzz_seed`` with each."""
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", host_levels())
    if "fuzz_seed" in metafunc.fixturenames:
        first, _, last = metafunc.config.getoption("--fuzz-seeds").partition("-")
        seeds = range(int(first), int(last or first) + 1)
        slow = [pytest.param(s, marks=pytest.mark.slow, id=f"seed{s}") for s in seeds]
        metafunc.parametrize("fuzz_seed", [pytest.param(0, id="seed0"), *slow])


LONG = (
    "backends/test_double.py",
    "runtime/test_runtime_kernels.py",
    "kernels/test_assembly.py",
    "kernels/gpu/test_kernels.py",
    "cli/test_faults.py",
    "cli/test_killed.py",
    "kernels/test_chain_kernel.py",
    "kernels/test_gemm_int8.py",
    "test_no_pixels.py",
    "test_any_model.py",
    "kernels/gpu/test_emitter.py",
    "test_end_to_end.py",
    "fuzz/test_graphs.py",
    "backends/test_staging.py",
    "runtime/test_runtime_conv.py",
    "toolchain/test_intrinsics.py",
    "tuning/test_tuner.py",
    "compress/test_compress.py",
    "test_recipes.py",
    "tuning/test_shared_study.py",
    "pipeline/test_guarding.py",
    "suite/test_node_tests.py",
    "runtime/test_empty.py",
    "suite/test_light_models.py",
    "fuzz/test_guards.py",
    "fuzz/test_mutations.py",
    "kernels/test_sources.py",
    "backends/test_plain.py",
    "pipeline/test_decision_cache.py",
)
"""The files that take the most time, those of most first; two that begin together should compile
different kernels."""


def pytest_configure(config: pytest.Config) -> None:
    """Take files in the order they are collected in, not those of many small tests first."""
    config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while cases are made, nor among them later: they live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long: processes that share the work end at the same time."""
    tests = Path(__file__).parent
    rank = {tests / name: place for place, name in enumerate(LONG)}
    assert all(path.exists() for path in rank), "LONG names a file that is gone"
    items.sort(key=lambda item: rank.get(item.path, len(LONG)))


@pytest.fixture(scope="module", name="highest_level")
def only_the_highest_level() -> Iterator[None]:
    with highest_level():
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text must equal ``golden/<name>`` beside the test."""

    def check(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing: run pytest --update-golden"
        assert text == path.read_text(), f"{name} differs: read the diff, then --update-golden"

    return check
