"""Drawn graphs all of whose constants may be fed: each answers as the original does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.fuzz.original import Original
from tests.fuzz.running import run_many, write_steady
from tests.fuzz.steadiness import Array
from tracea_graph import Options
from tracea_graph.check.worker_pool import WorkerPool
from tracea_graph.check.worker_process import Worker
from tracea_graph.onnx_io import Model, initializer_guards, load
from tracea_graph.pipeline import planning
from tracea_graph.pipeline.model_inputs import gather_inputs

pytestmark = pytest.mark.compiler

FEW, MANY = 8, 120
GUARDED = 0.5
"""The smallest share of models with an initializer that can be compared."""


def feed_constants(path: Path) -> None:
    """Make inputs of all initializers, too."""
    model = onnx.load(path)
    known = {v.name for v in model.graph.input}
    for held in (t for t in model.graph.initializer if t.name not in known):
        info = helper.make_tensor_value_info(held.name, held.data_type, list(held.dims))
        model.graph.input.append(info)
    model.ir_version = max(model.ir_version, 8)
    onnx.save(model, path)


def overrides(model: Model) -> Iterator[Mapping[str, Array]]:
    """The first feed with another value for one of the guarded initializers, each in turn."""
    feed = next(iter(gather_inputs(model, Options()).verification.values()))
    for name, weight in model.guarded.items():
        default = np.asarray(weight.array())
        if default.dtype == np.float32 and default.size:
            yield {**feed, name: (default * 1.25 + 0.125).astype(np.float32)}


def test_constants_that_may_be_fed(
    fuzz_seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "_WORTH", float("inf"))  # whatever is predicted
    count = MANY if fuzz_seed else FEW
    paths, _ = write_steady(tmp_path / "in", count, fuzz_seed + 1000)
    for path in paths:
        feed_constants(path)
    ran = run_many(paths, tmp_path / "out", every_level=fuzz_seed > 0)
    troubles = [f"{r.path.name}: {r.trouble}" for r in ran if r.trouble]
    assert not troubles, "\n".join(troubles)
    results = {path: tmp_path / "out" / f"{path.stem}.tracea.onnx" for path in paths}
    guarded = {
        path: out for path, out in results.items() if initializer_guards.is_guarded(load(out))
    }
    assert len(guarded) >= GUARDED * count
    compared = 0
    for path, out in guarded.items():
        with WorkerPool() as worker_pool, Worker() as worker:
            original = Original(worker_pool, path)
            worker.open("m", out, out.with_suffix(".so"), level="off")
            for feed in overrides(load(path, guard=True)):
                if (wanted := original.answer(feed)) is None:
                    continue  # a shape or an axis that does not fit
                found, compared = worker.run("m", feed), compared + 1
                trouble = original.judge(found, wanted, feed)
                assert not trouble, f"{path.name}: {trouble}"
    assert compared >= count
