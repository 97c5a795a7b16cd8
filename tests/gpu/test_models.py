"""A whole model of the zoo on a GPU: libraries that open with all their kernels, at many sizes.

Without a GPU a double of the driver opens libraries; it accepts plans and kernels that a driver
may refuse.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests.gpu.endurance import finished, opened
from tests.gpu.models import refusal
from tests.gpu.several import devices
from tests.tiny import ROOT, error_between
from tracea_graph.config import TOLERANCE

pytestmark = [pytest.mark.gpu, pytest.mark.compiler]
SIZES = ((1, 1), (1, 128), (3, 13), (2, 100), (8, 64), (16, 128))
"""Batches and lengths at which products are computed by different tiles."""


def test_bert_base_runs_at_sizes_of_many_kernels(tmp_path: Path) -> None:
    made = finished("bert-base", "fp16", tmp_path)
    session, _ = opened(made)
    assert refusal(made.library) == ""
    plain = onnxruntime.InferenceSession(str(made.original))
    names = [one.name for one in plain.get_outputs()]
    rng = np.random.default_rng(0)
    for batch, length in SIZES:
        feed = {
            "input_ids": rng.integers(0, 30000, (batch, length)),
            "attention_mask": np.ones((batch, length), np.int64),
            "token_type_ids": np.zeros((batch, length), np.int64),
        }
        found, wanted = (
            dict(zip(names, s.run(None, feed), strict=True)) for s in (session, plain)
        )
        assert error_between(found, wanted) < TOLERANCE.lossy


def test_sessions_on_every_gpu_give_the_same_bits(tmp_path: Path) -> None:
    if len(devices()) < 2:
        pytest.skip("this machine has one GPU")
    made = finished("tiny-bert", "fp16", tmp_path)
    files = f"{made.original}={made.result}"
    command = [sys.executable, "-m", "tests.gpu.several", files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
