"""Order of the codes of a block-quantized matrix on GPUs.

A window is 64 steps of the depth of a column: four granules of 16 steps.  Each of the four lanes
that share a column in a matrix fragment has four adjacent codes of a granule.  A lane's codes of
a window are adjacent in memory, with those of two steps 16 bits apart, so that a mask and a shift
give the codes of a fragment's register.
"""

from __future__ import annotations

from math import gcd

__all__ = ["GRANULE", "WINDOW", "groups_of", "window_axes"]

GRANULE, WINDOW = 16, 64
"""Steps of the depth that an instruction multiplies, and steps with codes stored together."""
_LANES = 4


def window_axes(bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes of a window's bytes in a model's file, and their order in kernels' storage.

    ``BlockQuantized`` stores the codes of a column in the order of the depth.
    """
    if bits == 4:  # pair of granules, granule, lane, half of the lane's codes
        return (2, 2, _LANES, 2), (2, 0, 3, 1)
    return (4, _LANES, bits // 2), (1, 0, 2)


def groups_of(block: int) -> int:
    """Return the number of steps whose products are added before they are scaled."""
    return gcd(block, WINDOW)
