"""Programs of models through the C interface of their own libraries, without ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from tests.tiny import child, product
from tracea_graph import api
from tracea_graph.commands.build_kernel_library import KernelLibrary
from tracea_graph.native_library import KernelError, NativeLibrary, view
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.onnx_io.model_reader import load
from tracea_graph.options import Options

Array = npt.NDArray[Any]
pytestmark = pytest.mark.compiler


def result(folder: Path) -> tuple[NativeLibrary, tuple[int, ...], list[Array]]:
    """The library of a model of one node, the node's plan, and its weights."""
    path = Path(api.optimize(product(folder / "m.onnx"), Options(keep="all", verify=False)).output)
    (node,) = custom_op_nodes(load(path))
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    held = [np.ascontiguousarray(weights[name]) for name in node.inputs if name in weights]
    return NativeLibrary(path.with_suffix(".so")), node.plan, held


def test_a_node_runs_at_any_size(tmp_path: Path) -> None:
    library, plan, weights = result(tmp_path)
    model = onnx.load(tmp_path / "m.onnx")
    session = onnx.reference.ReferenceEvaluator(model)
    for rows in (1, 5, 70):
        x = np.random.default_rng(rows).standard_normal((rows, 32)).astype(np.float32)
        (expected,) = session.run(None, {model.graph.input[0].name: x})
        y = np.empty_like(expected)
        library.run_program(plan, [view(x), *map(view, weights)], [view(y)])
        np.testing.assert_allclose(y, expected, atol=1e-5)


def test_what_does_not_fit_its_plan_is_refused(tmp_path: Path) -> None:
    library, plan, weights = result(tmp_path)
    x, y = np.zeros((3, 32), np.float32), np.zeros((3, 48), np.float32)
    narrow, whole = x[:, :31].copy(), x.astype(np.int32)
    rest = [view(w) for w in weights]
    for inputs, outputs, words in (
        ([view(x), *rest], [view(y[:2])], "another shape than the program gives it: 3 x 48"),
        ([view(narrow), *rest], [view(y)], "Input 0 has size 31 at axis 1"),
        ([view(x)], [view(y)], "inputs and 1 outputs, not 1 and 1"),
        ([view(whole), *rest], [view(y)], "Input 0 has type 6"),
        ([view(x[:, ::-1]), *rest], [view(y)], "must be dense"),
    ):
        with pytest.raises(KernelError, match=words):
            library.run_program(plan, inputs, outputs)
    with pytest.raises(KernelError, match="The plan's length is"):
        library.run_program(plan[:-3], [view(x), *rest], [view(y)])


FORKING = """
import os, sys
import numpy as np
from pathlib import Path
from tracea_graph.native_library import NativeLibrary, view
kernels = NativeLibrary(Path(sys.argv[1]))
kernels.set_threads(3)
x, y = np.ones((400, 300), np.float32), np.empty((400, 300), np.float32)
def run():
    y[:] = np.nan
    kernels.norm(view(x), None, None, view(y))
    return bool((y == 0).all())
first = run()
child = os.fork()
if child == 0:
    sys.exit(0 if run() else 1)  # ends as processes do, destructors included
print(first, os.waitpid(child, 0)[1], run())
"""


def test_a_forked_child_has_threads_of_its_own(built: KernelLibrary) -> None:
    assert child(FORKING, built.path) == "True 0 True\n"
