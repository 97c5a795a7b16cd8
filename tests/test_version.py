"""Several wheels of ONNX Runtime in one environment are noticed; any one of them will do."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping

import pytest

from tracea_graph import version
from tracea_graph.cli import main


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Pretend that these wheels of ONNX Runtime are installed, and no others."""
    real = importlib.metadata.version

    def pretend(wheels: Mapping[str, str]) -> None:
        def version(name: str) -> str:
            if not name.startswith("onnxruntime"):
                return real(name)
            if name not in wheels:
                raise importlib.metadata.PackageNotFoundError(name)
            return wheels[name]

        monkeypatch.setattr(importlib.metadata, "version", version)

    for known in (version._version, version._runtimes):
        known.cache_clear()
    yield pretend
    for known in (version._version, version._runtimes):
        known.cache_clear()


def test_one_wheel_is_no_conflict(installed: Callable[[Mapping[str, str]], None]) -> None:
    installed({"onnxruntime-gpu": "1.23.2"})
    assert version.runtime_conflict() == ""
    assert version.versions()["onnxruntime"] == "1.23.2"


def test_two_wheels_are_explained(
    installed: Callable[[Mapping[str, str]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    installed({"onnxruntime": "1.20.1", "onnxruntime-gpu": "1.23.2"})
    said = version.runtime_conflict()
    assert "onnxruntime 1.20.1 and onnxruntime-gpu 1.23.2 are installed together" in said
    assert "uninstall all of them, then install one" in said
    assert main(["doctor"]) == 0
    assert said in capsys.readouterr().out
