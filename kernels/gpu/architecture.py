"""NVIDIA's architectures: what a kernel may use on each, and how many blocks of it fit an SM.

Figures are those of the CUDA C++ Programming Guide, "Compute Capabilities", and of NVIDIA's
occupancy calculator; sizes are bytes.
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
    """Blocks of a kernel that an SM runs at a time, the share of its warps, and what limits it."""

    blocks: int
    share: float
    limit: str


@dataclass(frozen=True)
class Architecture:
    """What NVRTC calls ``name``: its compute ``capability`` (90 is 9.0) and an SM's limits.

    ``shared`` is an SM's shared memory and ``block_shared`` what one block may ask for;
    ``reserved`` is taken from it by the system for every block.
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
        """Whether kernels may use a feature.  Raises KeyError for one there is no such of."""
        return self.capability in _FEATURES[feature]

    def occupancy(self, registers: int, shared: int, threads: int) -> Occupancy:
        """How many blocks fit: ``registers`` of a thread, ``shared`` bytes and threads of a block.

        Registers are given to warps in steps, and a warp's come from one of the SM's parts.
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
        "bf16": frozenset({80, 86, 89, 90, 100, 120}),  # and tf32, in matrix instructions
        "dependents": frozenset({90, 100, 120}),  # griddepcontrol
        "tensor_maps": frozenset({90, 100, 120}),  # cp.async.bulk.tensor
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
"""By name, oldest first."""
