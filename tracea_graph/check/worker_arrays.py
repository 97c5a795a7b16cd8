"""Transfer arrays between the tool and a worker: a file of concatenated elements.

Names, element types and dims are part of the request.  An ``.npz`` file would take longer to read
and write than many models take to run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Spec = tuple[str, list[int]]
"""NumPy's code of an element type, such as ``<f4``, and the dims."""


def write_arrays(path: str, arrays: Iterable[Array]) -> list[Spec]:
    """Write arrays, objects as fixed-width strings; return the specs to read them back."""
    specs: list[Spec] = []
    with open(path, "wb") as file:
        for array in arrays:
            plain = array.astype(np.str_) if array.dtype.kind == "O" else array
            plain.tofile(file)
            specs.append((plain.dtype.str, list(plain.shape)))
    return specs


def read_arrays(path: str, specs: Sequence[Spec]) -> list[Array]:
    """Read arrays that :func:`write_arrays` wrote; strings become objects."""
    found: list[Array] = []
    with open(path, "rb") as file:
        for code, dims in specs:
            array = np.fromfile(file, np.dtype(code), math.prod(dims)).reshape(dims)
            found.append(array.astype(object) if array.dtype.kind == "U" else array)
    return found
