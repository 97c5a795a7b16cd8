"""PyTorch is optional: only ``tracea_graph.torch`` needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return ran.stdout


@pytest.mark.parametrize(
    "name", ["tracea_graph.api", "tracea_graph.cli", "tracea_graph.native_library"]
)
def test_nothing_else_imports_pytorch(name: str) -> None:
    found = run(f"import sys, {name}; print('torch' in sys.modules)")
    assert found == "False\n"


def test_without_pytorch_the_sentence_says_what_to_install() -> None:
    found = run(
        "import sys\nsys.modules['torch'] = None\n"
        "try:\n    import tracea_graph.torch\nexcept ImportError as error:\n    print(error)"
    )
    assert found == "tracea_graph.torch needs PyTorch: pip install tracea-graph[torch]\n"
