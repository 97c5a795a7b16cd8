"""``torch.compile`` with the backend ``tracea``: sessions, and what falls back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tracea_graph.config import TOLERANCE
from tracea_graph.errors import UsageError

torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test-torch)")
pytest.importorskip("onnxscript", reason="onnxscript is not installed (make test-torch)")

from tracea_graph.torch import fallback_log  # noqa: E402
from tracea_graph.torch.backend import compile_graph  # noqa: E402

pytestmark = pytest.mark.compiler
UNTIMED = {"keep": "all", "always": True}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Draw the same numbers in every test, and let it see its own graphs and fallbacks only."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    fallback_log._COUNTS.clear()
    with torch.no_grad():
        yield


def network() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5),
    ).eval()  # fmt: skip


def check(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= TOLERANCE.exact * expected.abs().max()


def test_models_run_in_a_session_with_any_batch_and_follow_changed_weights() -> None:
    model = network()
    fast = torch.compile(model, backend=compile_graph, options=UNTIMED)
    graphs = torch._dynamo.utils.counters["stats"]
    for batch in (2, 3, 5, 4):  # of its own size, then of any
        x = torch.randn(batch, 3, 16, 16)
        check(fast(x), model(x))
    assert fallback_log.fallback_counts() == {}
    assert graphs["unique_graphs"] == 2
    model[0].weight.mul_(2)
    check(fast(x), model(x))
    (reason,) = fallback_log.fallback_counts()
    assert "changed since the model was compiled" in reason[1]


def reasons(function: Any, *args: Any, **options: Any) -> list[str]:
    """Call a compiled function; return why it fell back."""
    fast = torch.compile(function, backend=compile_graph, options=UNTIMED | options)
    expected = function(*args)
    check(fast(*args), expected)
    return [why for _, why in fallback_log.fallback_counts()]


def test_what_learns_falls_back() -> None:
    with torch.enable_grad():
        (why,) = reasons(network(), torch.randn(2, 3, 16, 16))
    assert why.startswith("derivatives may be needed")


def test_what_changes_its_arguments_falls_back() -> None:
    model = torch.nn.BatchNorm1d(4)  # which updates its statistics
    fast = torch.compile(model, backend=compile_graph, options=UNTIMED)
    fast(torch.randn(3, 4))
    (why,) = (why for _, why in fallback_log.fallback_counts())
    assert why == "ONNX cannot express the graph (the graph changes its arguments)"


def test_what_onnx_lacks_falls_back() -> None:
    (why,) = reasons(lambda x: torch.linalg.eigvalsh(x + x.t()) + 1, torch.randn(3, 3))
    assert why.startswith("ONNX cannot express the graph")


def test_what_is_slower_falls_back() -> None:
    """An addition of three numbers is faster than a session."""
    (why,) = reasons(lambda x: x + 1, torch.randn(3), always=False)
    assert why.startswith("PyTorch is ")


def test_unknown_options_are_refused() -> None:
    for options, text in (({"bugdet": 3}, "bugdet"), ({"budget": -1}, "budget")):
        with pytest.raises(UsageError, match=text):
            compile_graph(torch.fx.symbolic_trace(lambda x: x + 1), [torch.ones(2)],
                          options=options)  # fmt: skip
