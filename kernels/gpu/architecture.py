"""NVIDIA GPU architectures: kernel features, and occupancy of a streaming multiprocessor (SM).

Numbers come from the CUDA C++ Programming Guide, "Compute Capabilities", and from NVIDIA's
occupancy calculator.  Sizes are in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["ARCHITECTURES", "Architecture", "Occupancy"]

_KB = 1 << 10
_WARP = 32


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks of a kernel per SM, the share of warps in use, and the limiting resource."""

    blocks: int
    share: float
    limit: str


@dataclass(frozen=True)
class Architecture:
    """An architecture as NVRTC names it, with the limits of an SM.

    ``capability`` is the compute capability as an integer: 90 stands for 9.0.  ``shared`` is the
    shared memory of an SM, ``block_shared`` is the maximum for one block, and ``reserved`` is
    what the system adds for each block.
    """

    name: str
    capability: int
    warps: int
    blocks: int
    shared: int
    block_shared: int
    shared_step: int = 128
    reserved: int = 1024
    registers: int = 65536
    thread_registers: int = 255
    register_step: int = 256
    parts: int = 4
    block_threads: int = 1024

    def has(self, feature: str) -> bool:
        """Return whether kernels may use a feature.  Raises KeyError for an unknown feature."""
        return self.capability in _FEATURES[feature]

    def occupancy(self, registers: int, shared: int, threads: int) -> Occupancy:
        """Compute how many blocks of ``threads`` threads are resident on an SM at a time.

        ``registers`` is per thread, ``shared`` is the shared memory of a block in bytes.  The
        hardware allocates registers to a warp in fixed units, all from one partition of the SM.
        """
        warps = -(-threads // _WARP)
        of_a_warp = -(-registers * _WARP // self.register_step) * self.register_step
        held = self.registers // self.parts // max(of_a_warp, 1) * self.parts
        taken = -(-(shared + self.reserved) // self.shared_step) * self.shared_step
        limits = {
            "blocks": self.blocks,
            "warps": self.warps // warps,
            "registers": held // warps,
            "shared memory": self.shared // taken if taken else self.blocks,
        }
        limit = min(limits, key=lambda name: limits[name])
        blocks = limits[limit] if shared <= self.block_shared else 0
        return Occupancy(blocks, blocks * warps / self.warps, limit)


_FEATURES: Mapping[str, frozenset[int]] = MappingProxyType(
    {
        "copy_async": frozenset({80, 86, 89, 90, 100, 120}),  # cp.async
        "bf16": frozenset({80, 86, 89, 90, 100, 120}),  # and tf32 in matrix instructions
        "sparse": frozenset({80, 86, 89, 90, 100, 120}),  # mma.sp
        "float8": frozenset({89, 90, 100, 120}),  # e4m3 in matrix instructions
        "dependents": frozenset({90, 100, 120}),  # griddepcontrol
        "tensor_maps": frozenset({90, 100, 120}),  # cp.async.bulk.tensor
        "clusters": frozenset({90, 100, 120}),  # and st.async
        "wgmma": frozenset({90}),
    }
)

_ALL = (
    Architecture("sm_75", 75, 32, 16, 64 * _KB, 64 * _KB, shared_step=256, reserved=0),
    Architecture("sm_80", 80, 64, 32, 164 * _KB, 163 * _KB),
    Architecture("sm_86", 86, 48, 16, 100 * _KB, 99 * _KB),
    Architecture("sm_89", 89, 48, 24, 100 * _KB, 99 * _KB),
    Architecture("sm_90a", 90, 64, 32, 228 * _KB, 227 * _KB),
    Architecture("sm_100", 100, 64, 32, 228 * _KB, 227 * _KB),
    Architecture("sm_120", 120, 48, 24, 100 * _KB, 99 * _KB),
)
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType({a.name: a for a in _ALL})
"""Architectures by name, oldest first."""
