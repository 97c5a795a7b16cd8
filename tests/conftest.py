"""Options and parameters the whole suite shares.

A test with an ``isa`` argument runs once per instruction-set level this CPU has; ``golden``
compares text with a file beside the test, or rewrites it under ``--update-golden``; ``fuzz_seed``
is 0, and in slow runs also each of ``--fuzz-seeds``, every one a test of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from tracea_graph.hardware import profile_cpu

# An example is not wrong because the machine was busy meanwhile.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption(
        "--fuzz-seeds", default="1-20", metavar="A-B", help="seeds of the slow tests in tests/fuzz"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``isa`` at every level, one that takes ``fuzz_seed`` with each."""
    if "isa" in metafunc.fixturenames:
        metafunc.parametrize("isa", profile_cpu().isas)
    if "fuzz_seed" in metafunc.fixturenames:
        first, _, last = metafunc.config.getoption("--fuzz-seeds").partition("-")
        seeds = range(int(first), int(last or first) + 1)
        slow = [pytest.param(s, marks=pytest.mark.slow, id=f"seed{s}") for s in seeds]
        metafunc.parametrize("fuzz_seed", [pytest.param(0, id="seed0"), *slow])


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
