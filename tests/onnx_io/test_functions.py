"""Bodies are written in what the model's opset has."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper

from tracea_graph.ir import Node
from tracea_graph.onnx_io.local_functions import LocalFunction, to_proto


@pytest.mark.parametrize("opset", [7, 8, 9, 17])
def test_integers_before_opset_9_are_cast_from_doubles(opset: int) -> None:
    """Constant was of floating point only; onnx's checker refuses others."""
    sizes = np.array([0, -1, 1 << 40])
    made = numpy_helper.from_array(sizes)
    imported = [helper.make_node("Constant", [], ["s"], value=made)]
    body = LocalFunction("F", ("x",), ("s",), (Node("Constant", (), ("s",), {}, source=0),))
    found = to_proto(body, "d", [helper.make_opsetid("", opset)], imported)
    assert [n.op_type for n in found.node] == ["Constant", "Cast"][: 1 + (opset < 9)]
    value = numpy_helper.to_array(found.node[0].attribute[0].t)
    assert np.array_equal(value, sizes) and value.dtype == (np.float64 if opset < 9 else np.int64)
    assert found.node[-1].output[0] == "s" and len({n.name for n in found.node}) == len(found.node)
