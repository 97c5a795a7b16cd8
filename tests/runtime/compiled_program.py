"""Programs around headers of the runtime, which tests run."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tracea_graph.kernels import cpu

__all__ = ["compiled_program"]

_HEADERS = Path(str(cpu.__file__)).parent


def compiled_program(source: Path, folder: Path, *options: str) -> Path:
    """Compile a program in ``folder``; ``options`` are for g++, beside the headers' folders.

    Raises CalledProcessError if it does not compile.
    """
    made = folder / source.stem
    own = ("-std=c++17", "-O1", *options, f"-I{_HEADERS}", f"-I{_HEADERS.parent}")
    subprocess.run(["g++", *own, str(source), "-o", str(made)], check=True, timeout=600)
    return made
