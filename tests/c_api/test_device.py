"""The C interface of a library for GPUs: on the driver's double, and on a GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.backends.conformance import perceptron
from tests.backends.double import DOUBLE, Double, driver
from tests.c_api.test_hosts import compiled
from tests.gpu.several import devices
from tests.graphs import normal, session
from tests.tiny import child
from tracea_graph import Options, api, target
from tracea_graph.commands.build_kernel_library import KernelLibrary, build_kernels
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.standalone_functions import (
    OPS,
    SYMBOLS,
    DeviceFunction,
    functions,
    kernels_of_functions,
)
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.kernels.runtime import public_header

pytestmark = pytest.mark.compiler
REFUSED = """\
refused (2): a lies in the host's memory, but this library has kernels for GPUs \
(device_id from 0) only.
refused (1): The result shares memory with a.
refused (1): c lies on GPU 77, but others on GPU {device}.
refused (2): There is no GPU 77; this machine shows {count}.
refused (2): This library has no norms for GPUs.
"""


def _few() -> list[DeviceFunction]:
    """Functions that the host programs call: without activations that they do not ask for."""
    held = (DType.F32, DType.F16)
    return [
        f for f in functions()
        if f.dtype in held and f.activation in ((0, 1) if f.op == "gemm" else (0,))
    ]  # fmt: skip


class Few(Double):
    """The driver's double, whose stand-alone libraries hold a few functions."""

    targets = ("double:sm_90",)

    def standalone(self, ops: Sequence[str]) -> LibraryContents:
        few = _few()
        kernels = sorted({kernel for f in few for kernel in f.kernels})
        chains = tuple(dict.fromkeys(chain for f in few for chain in f.chains))
        return LibraryContents(kernels=kernels, chains=chains)


@pytest.fixture(scope="module")
def on_double(tmp_path_factory: pytest.TempPathFactory) -> KernelLibrary:
    """A library for the driver's double."""
    few = Few("double", DOUBLE._dialect, DOUBLE._compiled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "BACKENDS", (*target.BACKENDS, few))
        return build_kernels(OPS, tmp_path_factory.mktemp("gpu"), target="double:sm_90")


def run(program: Path, *args: str, found: Path | None = None) -> str:
    """Run a host program, with the driver of a folder."""
    places = f"{found or ''}:{os.environ.get('LD_LIBRARY_PATH', '')}".strip(":")
    ran = subprocess.run(
        [program, *args], capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": places},
    )  # fmt: skip
    assert ran.returncode == 0, f"exit code {ran.returncode}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def hosts(
    built: KernelLibrary, folder: Path, found: Path | None, device: int = 0, count: int = 1
) -> None:
    """Run the C++ program and the C program of ``tsr.h`` on a GPU, of so many."""
    program = compiled(built, "g++", "device.cpp", folder / "device", "-std=c++17")
    *refused, isa = run(program, found=found).splitlines()
    assert refused == REFUSED.format(device=device, count=count).splitlines()
    assert isa in built.levels
    program = compiled(built, "gcc", "launch.c", folder / "launch", "-std=c99")
    newer, shapes, used, _, none = run(program, str(built.path), "0", found=found).splitlines()
    assert newer == "newer: The program needs version 1.2 of tsr.h, this is 1.1."
    assert shapes.startswith("shapes: The shapes of a, b and c do not fit")
    assert used == "in use: The context still has 2 modules and streams."
    assert none == f"device: There is no GPU 99; this machine shows {count}."


def test_programs_use_a_gpu(on_double: KernelLibrary, tmp_path: Path) -> None:
    hosts(on_double, tmp_path, driver())


def test_without_a_driver_there_is_a_sentence(on_double: KernelLibrary, tmp_path: Path) -> None:
    program = compiled(on_double, "gcc", "launch.c", tmp_path / "launch", "-std=c99")
    environment = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    ran = subprocess.run(
        [program, on_double.path, "99"], capture_output=True, text=True, env=environment,
        check=False, timeout=60,
    )  # fmt: skip
    assert ran.returncode == 1
    missing = "context: This machine has no driver for GPUs: libcuda.so.1 is missing."
    assert missing in ran.stdout or "context: There is no GPU 99" in ran.stdout


PROGRAM = """
import ctypes, sys
import numpy as np
import onnx
from pathlib import Path
from onnx import numpy_helper
from tracea_graph.native_library import NativeLibrary, KernelError, view, view_of
from tracea_graph.onnx_io.custom_op_inlining import custom_op_nodes
from tracea_graph.onnx_io.model_reader import load

driver = ctypes.CDLL("libcuda.so.1")
path, context = Path(sys.argv[1]), ctypes.c_void_p()
for code in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
             driver.cuCtxSetCurrent(context)):
    assert code == 0

def put(array):
    at, array = ctypes.c_uint64(), np.ascontiguousarray(array)
    assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(max(array.nbytes, 1))) == 0
    bytes_of = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    assert driver.cuMemcpyHtoD_v2(at, *bytes_of) == 0
    made = view_of(at.value, 1, array.shape, [s // 4 for s in array.strides])
    made.device_id = 0
    return made

library = NativeLibrary(path.with_suffix(".so"))
(node,) = custom_op_nodes(load(path))
weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
held = {name: put(weights[name]) for name in node.inputs if name in weights}
for x, expected in zip(*(np.load(name).values() for name in sys.argv[2:])):
    y = put(np.full_like(expected, np.nan))
    library.run_program(node.plan, [held.get(n) or put(x) for n in node.inputs], [y])
    found = np.empty_like(expected)
    bytes_of = ctypes.c_uint64(y.ptr), ctypes.c_size_t(found.nbytes), None
    assert driver.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(found.ctypes.data), *bytes_of) == 0
    assert driver.cuStreamSynchronize(None) == 0
    np.testing.assert_allclose(found, expected, atol=1e-5)
try:
    library.run_program(node.plan, [held.get(n) or put(x[:, 1:]) for n in node.inputs], [y])
except KernelError as error:
    print(error)
try:
    library.run_program(node.plan, [view(x)] * len(node.inputs), [y])
except KernelError as error:
    print(error)
print(library.isa)
"""


def test_a_models_program_runs_without_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "BACKENDS", (*target.BACKENDS, DOUBLE))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver()))
    options = Options(target="double:sm_90", keep="all", verify=False)
    report = api.optimize(perceptron(tmp_path / "m.onnx"), options)
    given = {str(rows): normal(rows, 24) for rows in (1, 5, 70, 5)}
    plain = session(report.input)
    (name,) = (one.name for one in plain.get_inputs())
    np.savez(tmp_path / "x.npz", **given)
    results = {key: plain.run(None, {name: x})[0] for key, x in given.items()}
    np.savez(tmp_path / "y.npz", **results)
    shape, place, isa = child(
        PROGRAM, report.output, tmp_path / "x.npz", tmp_path / "y.npz"
    ).splitlines()
    assert shape == "Tensor 0 has size 23 at axis 1, but must have 24 there."
    assert place == "Tensors of this program lie on a GPU."
    assert isa == "sm_90a"


@pytest.mark.gpu
def test_programs_use_this_machines_gpu(tmp_path: Path) -> None:
    built = build_kernels(OPS, tmp_path / "kernels", target="cuda")
    hosts(built, tmp_path, None, int(os.environ.get("TRACEA_CUDA_DEVICE", "0")), len(devices()))


def test_every_function_has_a_plan_and_kernels() -> None:
    made = functions()
    assert len({f.key for f in made}) == len(made) == 2 * 2 * 3 * 7
    contents = kernels_of_functions(OPS)
    assert {k for f in made for k in f.kernels} == {*contents.kernels}
    assert len(contents.chains) == 18
    assert {len(names) for names in SYMBOLS.values()} == {14, 32}


def test_the_library_reads_as_many_symbols_as_plans_have() -> None:
    """``FunctionCall::kMost`` of the runtime is enough."""
    assert max(len(names) for names in SYMBOLS.values()) <= 40
    assert "tsrStreamHandle" in public_header("tsr.h")
