"""Drawn models in branches, in loops and in half precision: import changes no answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto

from tests.fuzz.feeding import feeds
from tests.fuzz.strategies import drawn
from tests.fuzz.wrapping import DEEPER, FLAG, halved, in_branches, in_loop
from tests.graphs import session
from tests.onnx_io.samples import save, verbatim
from tracea_graph.check.output_errors import relative_distance
from tracea_graph.onnx_io import load

FEW, MANY = 25, 250
"""Models of the default seed; of each slow one."""
USED = 0.5
"""The smallest share of models that must have such a form."""
TRIPS = 3

Feed = Mapping[str, Any]


def models(seed: int) -> Iterator[tuple[ModelProto, Feed]]:
    """Drawn models with inputs, but none whose symbols stand for several sizes.

    ONNX Runtime reuses buffers by the names of sizes, and import adds and moves nodes.
    """
    for model in drawn(MANY if seed else FEW, seed + 7000):
        feed = next(iter(feeds(model))).arrays
        if _one_size_each(model, feed):
            yield model, feed


def _one_size_each(model: ModelProto, feed: Feed) -> bool:
    """Whether every symbol of the declared inputs stands for one size."""
    sizes: dict[str, int] = {}
    for given in model.graph.input:
        dims = [d.dim_param for d in given.type.tensor_type.shape.dim]
        pairs = zip(dims, np.shape(feed[given.name]) if given.name in feed else (), strict=False)
        if any(name and sizes.setdefault(name, size) != size for name, size in pairs):
            return False
    return True


def answers(model: Path | ModelProto, feed: Feed) -> list[Any] | None:
    """None if ONNX Runtime refuses the model or the inputs."""
    try:
        made = session(model)
        return list(made.run(None, {i.name: feed[i.name] for i in made.get_inputs()}))
    except Exception as error:  # the binding raises several unrelated types
        assert _is_refusal(error), error
        return None


def _is_refusal(error: Exception) -> bool:
    return type(error).__module__.startswith("onnx") or isinstance(error, RuntimeError)


def imported(proto: ModelProto, folder: Path) -> tuple[Path, set[str]]:
    """The model as it is written again, and the operators import left."""
    loaded = load(save(proto, folder), unrolled=True)
    return verbatim(loaded, folder / "out.onnx").model, {r.op for r in loaded.graph.regions()}


def agree(found: list[Any] | None, wanted: list[Any], limit: float) -> bool:
    if found is None:
        return False
    pairs = zip(found, wanted, strict=True)
    return all(a.dtype == b.dtype and relative_distance(a, b) <= limit for a, b in pairs)


def test_branches_answer_as_before(fuzz_seed: int, tmp_path: Path) -> None:
    tried, used = 0, 0
    for tried, (model, feed) in enumerate(models(fuzz_seed), 1):
        wrapped = in_branches(model)
        flags = ((True, False), (False, True), (False, False))
        fed = [{**feed, FLAG: np.array(a), DEEPER: np.array(b)} for a, b in flags]
        wanted = [answers(wrapped, f) for f in fed]
        if any(w is None for w in wanted):
            continue
        used += 1
        out, _ = imported(wrapped, tmp_path)
        for one, expected in zip(fed, wanted, strict=True):
            assert expected is not None and agree(answers(out, one), expected, 1e-5), tried
    assert used >= USED * tried


def test_loops_answer_as_before(fuzz_seed: int, tmp_path: Path) -> None:
    tried, used = 0, 0
    for tried, (model, feed) in enumerate(models(fuzz_seed), 1):
        wrapped = in_loop(model, TRIPS)
        wanted = answers(wrapped, feed)
        if wanted is None:
            continue
        out, left = imported(wrapped, tmp_path)
        drawn = any(n.op_type == "Loop" for n in model.graph.node)
        assert drawn or "Loop" not in left, tried
        used += 1
        assert agree(answers(out, feed), wanted, 1e-5), tried
    assert used >= USED * tried


def test_halves_answer_as_float32(fuzz_seed: int, tmp_path: Path) -> None:
    """The widened model does in float32 what the drawn one does with rounded constants.

    Or is as near to it as what ONNX Runtime makes of it as drawn: roundings may add up.
    """
    tried, used = 0, 0
    for tried, (model, feed) in enumerate(models(fuzz_seed), 1):
        half = halved(model, TensorProto.FLOAT16, rounded=False)
        try:
            onnx.checker.check_model(half, full_check=True)
            session(half)
        except Exception as error:  # an operator that knows no half type
            assert _is_refusal(error), error
            continue
        with np.errstate(over="ignore"):
            given = {n: _half(a) for n, a in feed.items()}
        wide = {n: given[n].astype(a.dtype) for n, a in feed.items()}
        wanted = answers(halved(model, TensorProto.FLOAT16, rounded=True), wide)
        if wanted is None:
            continue
        used += 1
        found = answers(imported(half, tmp_path)[0], given)
        halves = [o.type == "tensor(float16)" for o in session(half).get_outputs()]
        with np.errstate(over="ignore"):
            pairs = zip(wanted, halves, strict=True)
            wanted = [w.astype(np.float16) if is_half else w for w, is_half in pairs]
        if not agree(found, wanted, 2.0**-10):
            own = answers(half, given)
            assert found is not None and own is not None, tried
            for one, expected, drawn_one in zip(found, wanted, own, strict=True):
                limit = max(2.0**-10, relative_distance(drawn_one, expected))
                assert agree([one], [expected], limit), tried
    assert used >= USED / 2 * tried


def _half(array: Any) -> Any:
    return array.astype(np.float16) if array.dtype == np.float32 else array


@pytest.fixture(autouse=True)
def quiet() -> None:
    onnxruntime.set_default_logger_severity(4)
