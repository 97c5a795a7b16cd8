"""Prune the matrices of a model of the zoo: at most two of every four weights are not zero (2:4).

python -m models.make bert-base-pruned    # keeps the two largest of four weights along K
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

__all__ = ["FORMS", "matrices", "prune"]

FORMS = ("pruned",)
"""Suffixes of the names of pruned models."""
_GROUP, _KEPT = 4, 2


def prune(source: Path, form: str, target: Path) -> None:
    """Write the pruned form of a float32 model.

    Raises:
        ValueError: there is no such form.
    """
    if form not in FORMS:
        raise ValueError(f"there is no pruned form '{form}', only {', '.join(FORMS)}")
    model = onnx.load(source)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, axis in matrices(model):
        tensor = stored.get(name)
        if tensor is not None and len(tensor.dims) == 2 and tensor.dims[axis] % _GROUP == 0:
            array = np.moveaxis(numpy_helper.to_array(tensor).copy(), axis, -1)
            groups = array.reshape(*array.shape[:-1], -1, _GROUP)
            smallest = np.argsort(np.abs(groups), axis=-1, kind="stable")[..., : _GROUP - _KEPT]
            np.put_along_axis(groups, smallest, 0, -1)
            whole = np.moveaxis(groups.reshape(array.shape), -1, axis)
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(whole), name))
    onnx.save(model, target)


def matrices(model: ModelProto) -> Iterator[tuple[str, int]]:
    """Yield the right operand of each product, and the axis along which it is summed."""
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            own = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            yield node.input[1], int(bool(own.get("transB", 0)))
