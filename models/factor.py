"""Lower the rank of the matrices of a model of the zoo.

python -m models.make bert-base-rank128    # every matrix has at most rank 128
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from models.prune import matrices

__all__ = ["FORMS", "factor"]

FORMS = ("rank96", "rank128")
"""Suffixes of the names of models whose matrices have at most such a rank."""


def factor(source: Path, form: str, target: Path) -> None:
    """Write a float32 model of which no matrix has a larger rank than the form says.

    A matrix keeps the part of its rows in a random subspace, scaled so that products keep their
    variance.

    Raises:
        ValueError: there is no such form.
    """
    if form not in FORMS:
        raise ValueError(f"there is no low-rank form '{form}', only {', '.join(FORMS)}")
    model, rank = onnx.load(source), int(form.removeprefix("rank"))
    random = np.random.default_rng(0)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, _ in matrices(model):
        tensor = stored.get(name)
        if tensor is not None and len(tensor.dims) == 2 and min(tensor.dims) > rank:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            width = array.shape[1]
            basis, _ = np.linalg.qr(random.standard_normal((width, rank)))
            low = array @ basis @ (basis.T * (width / rank) ** 0.5)
            tensor.CopyFrom(numpy_helper.from_array(low.astype(np.float32), name))
    onnx.save(model, target)
