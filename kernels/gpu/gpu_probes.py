"""Kernels that measure a GPU: rates of instructions and of memory, and the cost of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracea_graph.kernels.gpu.architecture import Architecture
from tracea_graph.kernels.gpu.dialect import CUDA, Target
from tracea_graph.kernels.gpu.emitter import kernel_preamble, render
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.semantic.wgmma_descriptors import MatrixOperand

__all__ = ["GpuProbe", "probe_source", "probes"]

_F16, _BF16, _F32, _BYTES, _E4M3 = (
    ("0x83ff83ff", "0x38003800"), ("0x807f807f", "0x3f003f00"), ("0x807fffff", "0x3f000000"),
    ("0xffffffff", "0"), ("0x87878787", "0x30303030"),
)  # fmt: skip
"""By type, mask of a word's random bits, and its fixed bits: magnitudes are 1/2 to 1."""
_A, _B = MatrixOperand(64, 64, True), MatrixOperand(256, 64, True)
"""Operands of a warpgroup; a row has the same number of bytes for every type."""
_STEPS = 4
"""Number of instructions along a row of an operand."""


@dataclass(frozen=True)
class GpuProbe:
    """A kernel that measures one figure.

    ``kind`` is ``multiply``, ``wgmma``, ``read`` or ``step``; ``name`` says what is measured.
    ``work`` is the number of operations or bytes that a block handles in one round, or 0 if the
    figure is not a rate.
    """

    kind: str
    name: str
    dtype: str = ""
    work: int = 0
    threads: int = 256
    blocks: int = 2
    shared: int = 0
    needs: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict, compare=False)


def _mma(
    dtype: str,
    shape: str,
    drawn: tuple[str, str],
    sum_type: str = "float",
    parts: tuple[int, int] = (4, 2),
    needs: tuple[str, ...] = ("bf16",),
) -> GpuProbe:
    """Warp matrix multiplication: 8 warps per block, 8 dependency chains per warp."""
    depth = int(shape.partition(".")[0].rpartition("k")[2])
    letter = "f" if sum_type == "float" else "r"
    letters = ", ".join(f'"+{letter}"(d[i][{j}])' for j in range(4))
    parameters = {"shape": shape, "mask": drawn[0], "bits": drawn[1], "sum": sum_type,
                  "parts": parts, "each": 4, "letters": letters}  # fmt: skip
    work = 8 * 8 * 2 * 16 * 8 * depth
    return GpuProbe("multiply", "mma", dtype, work, needs=needs, parameters=parameters)


def _wgmma(
    dtype: str, shape: str, drawn: tuple[str, str], signs: str, sum_type: str = "float"
) -> GpuProbe:
    """Warpgroup matrix multiplication: two warpgroups per block."""
    depth = int(shape.partition(".")[0].rpartition("k")[2])
    shared = 2 * _A.nbytes + _B.nbytes
    parameters = {"shape": shape, "mask": drawn[0], "bits": drawn[1], "sum": sum_type,
                  "letter": "f" if sum_type == "float" else "r", "signs": signs,
                  "a_bytes": _A.nbytes, "descriptor": _A.bits, "step": _A.step}  # fmt: skip
    work = 2 * _STEPS * 2 * 64 * 256 * depth
    return GpuProbe("wgmma", "wgmma", dtype, work, 256, 1, shared, ("wgmma",), parameters)


_PROBES = (
    GpuProbe("multiply", "fma", "f32", 256 * 8 * 8 * 2, parameters={
        "mask": _F32[0], "bits": _F32[1], "sum": "float", "parts": (), "each": 8}),
    _mma("f16", "m16n8k16.row.col.f32.f16.f16.f32", _F16),
    _mma("bf16", "m16n8k16.row.col.f32.bf16.bf16.f32", _BF16),
    _mma("tf32", "m16n8k8.row.col.f32.tf32.tf32.f32", _F32),
    _mma("i8", "m16n8k32.row.col.s32.s8.s8.s32", _BYTES, "i32"),
    _wgmma("f16", "m64n256k16.f32.f16.f16", _F16, ", 1, 1, 0, 0"),
    _wgmma("bf16", "m64n256k16.f32.bf16.bf16", _BF16, ", 1, 1, 0, 0"),
    _wgmma("tf32", "m64n256k8.f32.tf32.tf32", _F32, ", 1, 1"),
    _wgmma("f8", "m64n256k32.f32.e4m3.e4m3", _E4M3, ", 1, 1"),
    _wgmma("i8", "m64n256k32.s32.s8.s8", _BYTES, "", "i32"),
    GpuProbe("read", "shared", work=512 * 4 * 16, threads=512, blocks=2, shared=512 * 4 * 16,
          parameters={"space": "shared"}),
    GpuProbe("read", "memory", threads=512, parameters={"space": "memory"}),
    GpuProbe("step", "step", blocks=1),
)  # fmt: skip
_OLD = _mma("f16", "m16n8k8.row.col.f32.f16.f16.f32", _F16, parts=(2, 1), needs=())  # before sm_80


def probes(architecture: Architecture) -> tuple[GpuProbe, ...]:
    """Return the probes whose instructions an architecture has."""
    found = tuple(p for p in _PROBES if all(map(architecture.has, p.needs)))
    return found if architecture.has("bf16") else (*found, _OLD)


def probe_source(probe: GpuProbe, architecture: Architecture) -> KernelSource:
    """Generate the source of a probe."""
    words = "_".join(filter(None, (probe.dtype, probe.name)))
    symbol = f"tracea_probe_{words}__{architecture.name}"
    body = render(
        f"probe_{probe.kind}.cu.in", symbol=symbol, threads=probe.threads, blocks=probe.blocks,
        shared=probe.shared, **probe.parameters,
    )  # fmt: skip
    text = kernel_preamble(Target(CUDA, architecture)) + body
    return KernelSource(symbol, text, probe.threads, probe.shared)
