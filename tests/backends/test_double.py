"""The GPU backend takes models through the whole tool, on a double of the driver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from backends.double import DOUBLE, driver
from backends.test_plain import kernels_run, perceptron

from tracea_graph import Options, api, target

pytestmark = pytest.mark.compiler
CLOSE = 1e-5
HERE = Options(target="double:sm_90", keep="legal")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    backends: tuple[target.Backend, ...] = (*target.BACKENDS, DOUBLE)
    monkeypatch.setattr(target, "BACKENDS", backends)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver()))  # of workers, which look there for it


def test_a_perceptron_runs_in_its_kernels(tmp_path: Path) -> None:
    path = perceptron(tmp_path / "m.onnx")
    report = api.optimize(path, HERE)
    assert (report.outcome, report.status) == ("improved", "passed")
    assert kernels_run(report, {"x": np.ones((3, 24), np.float32)}) == report.kernels >= 1
