"""The C interface of a library for GPUs: on the driver's double, and on a GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.backends.double import DOUBLE, Double, driver
from tests.c_api.test_hosts import compiled
from tracea_graph import target
from tracea_graph.commands.kernels import KernelLibrary, build_kernels
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.standalone import OPS, SYMBOLS, DeviceFunction, functions, standalone
from tracea_graph.kernels.runtime import public_header
from tracea_graph.ops.chain import Chain

pytestmark = pytest.mark.compiler
REFUSED = """\
refused (2): a lies in the host's memory, but this library has kernels for GPUs \
(device_id from 0) only.
refused (1): The result shares memory with a.
refused (1): c lies on GPU 77, but others on GPU 0.
refused (2): There is no GPU 77; this machine shows 1.
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

    def standalone(self, ops: Sequence[str]) -> tuple[tuple[str, ...], tuple[Chain, ...]]:
        few = _few()
        kernels = sorted({kernel for f in few for kernel in f.kernels})
        return tuple(kernels), tuple(dict.fromkeys(chain for f in few for chain in f.chains))


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


def hosts(built: KernelLibrary, folder: Path, found: Path | None) -> None:
    """Run the C++ program and the C program of ``tsr.h`` against a library."""
    program = compiled(built, "g++", "device.cpp", folder / "device", "-std=c++17")
    *refused, isa = run(program, found=found).splitlines()
    assert refused == REFUSED.splitlines()
    assert isa in built.levels
    program = compiled(built, "gcc", "launch.c", folder / "launch", "-std=c99")
    newer, shapes, used, _, none = run(program, str(built.path), "0", found=found).splitlines()
    assert newer == "newer: The program needs version 1.2 of tsr.h, this is 1.1."
    assert shapes.startswith("shapes: The shapes of a, b and c do not fit")
    assert used == "in use: The context still has 2 modules and streams."
    assert none == "device: There is no GPU 99; this machine shows 1."


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


@pytest.mark.gpu
def test_programs_use_this_machines_gpu(tmp_path: Path) -> None:
    built = build_kernels(OPS, tmp_path / "kernels", target="cuda")
    hosts(built, tmp_path, None)


def test_every_function_has_a_plan_and_kernels() -> None:
    made = functions()
    assert len({f.key for f in made}) == len(made) == 2 * 2 * 3 * 7
    kernels, chains = standalone(OPS)
    assert {k for f in made for k in f.kernels} == {*kernels}
    assert len(chains) == 18
    assert {len(names) for names in SYMBOLS.values()} == {14, 32}


def test_the_library_reads_as_many_symbols_as_plans_have() -> None:
    """``FunctionCall::kMost`` of the runtime is enough."""
    assert max(len(names) for names in SYMBOLS.values()) <= 40
    assert "tsrStreamHandle" in public_header("tsr.h")
