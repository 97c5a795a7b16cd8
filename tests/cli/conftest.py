"""A folder to run commands in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import product


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a good model, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    product(tmp_path / "good.onnx")
    return tmp_path
