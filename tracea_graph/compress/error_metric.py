"""Measure the error that is budgeted: relative to ``max|y|``, or by a user's function."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracea_graph.check.output_errors import is_float, relative_distance
from tracea_graph.errors import UsageError

__all__ = ["Metric", "load_metric", "relative_max_error"]

Outputs = Mapping[str, npt.NDArray[Any]]
Metric = Callable[[Outputs, Outputs], float]
"""Function that returns the error of outputs by name, given those of the original."""


def relative_max_error(found: Outputs, wanted: Outputs) -> float:
    """Return the largest difference of any floating-point output as a share of its ``max|y|``."""
    floats = [name for name, array in wanted.items() if is_float(np.asarray(array))]
    return max((relative_distance(found[n], wanted[n]) for n in floats), default=0.0)


def load_metric(text: str) -> Metric:
    """Load ``FILE.py:FUNCTION`` as a metric whose results are checked.

    Raises UsageError if it cannot be loaded; the metric raises UsageError if the function raises
    or returns anything but a number of at least 0.
    """
    file, _, name = text.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier() or path.suffix != ".py":
        raise UsageError(f"--metric takes FILE.py:FUNCTION, not {text!r}")
    if not path.is_file():
        raise UsageError(f"--metric {path} does not exist")
    function = getattr(_module(path), name, None)
    if not callable(function):
        raise UsageError(f"--metric {path} has no function {name!r}")

    def guarded(found: Outputs, wanted: Outputs) -> float:
        try:
            value = float(function(dict(found), dict(wanted)))
        except Exception as error:  # the user's code may raise anything
            raise UsageError(f"--metric {text} raised {type(error).__name__}: {error}") from error
        if not 0 <= value < math.inf:
            raise UsageError(f"--metric {text} must return a number of at least 0, not {value}")
        return value

    return guarded


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"tracea_metric_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"--metric {path} raised {type(error).__name__}: {error}") from error
    return module
