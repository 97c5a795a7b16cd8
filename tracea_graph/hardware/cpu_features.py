"""Processor features as the operating system reports them, in Linux's spelling.

Linux lists x86's in ``/proc/cpuinfo`` and Arm's in the auxiliary vector; macOS answers ``sysctl``,
Windows ``IsProcessorFeaturePresent``.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["arm_features", "system_features", "system_model"]

_HWCAP, _HWCAP2 = 16, 26
"""Keys of the auxiliary vector (``AT_HWCAP`` and ``AT_HWCAP2``)."""
_BITS: Mapping[int, Mapping[int, str]] = MappingProxyType(
    {
        _HWCAP: {1: "asimd", 9: "fphp", 10: "asimdhp", 20: "asimddp", 22: "sve"},
        _HWCAP2: {1: "sve2", 13: "i8mm", 14: "bf16"},
    }
)
"""Bits of Arm's features (Linux, ``arch/arm64/include/uapi/asm/hwcap.h``)."""

_SYSCTL: Mapping[str, str] = MappingProxyType(
    {
        "hw.optional.AdvSIMD": "asimd",
        "hw.optional.arm.FEAT_FP16": "asimdhp",
        "hw.optional.arm.FEAT_DotProd": "asimddp",
        "hw.optional.arm.FEAT_I8MM": "i8mm",
        "hw.optional.arm.FEAT_BF16": "bf16",
    }
)
"""Arm's features by the name of macOS's ``sysctl``."""
_X86_LISTS = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
"""Names of macOS's ``sysctl`` whose values are lists of x86's features."""
_MOST_WINDOWS = 128
"""Exclusive upper limit of Windows' feature numbers."""


def system_features() -> frozenset[str]:
    """Return processor features that ``/proc/cpuinfo`` does not list, as the system names them.

    Empty if the system names none.  Windows numbers its features: number 43 becomes ``pf43``.
    """
    if sys.platform == "darwin":
        listed = " ".join(map(_sysctl, _X86_LISTS)).lower().split()
        return frozenset((*listed, *(n for key, n in _SYSCTL.items() if _sysctl(key) == "1")))
    if sys.platform == "win32":
        present = ctypes.windll.kernel32.IsProcessorFeaturePresent
        return frozenset(f"pf{i}" for i in range(_MOST_WINDOWS) if present(i))
    return arm_features() if platform.machine() == "aarch64" else frozenset()


def system_model() -> str:
    """The processor's name on systems without ``/proc/cpuinfo``; empty if unknown."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string")
    return platform.processor() if sys.platform == "win32" else ""


def arm_features(auxv: Path = Path("/proc/self/auxv")) -> frozenset[str]:
    """Arm's features in Linux's auxiliary vector of 64-bit pairs; empty if it cannot be read."""
    try:
        data = auxv.read_bytes()
    except OSError:
        return frozenset()
    pairs = dict(struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]))
    return frozenset(
        name
        for key, bits in _BITS.items()
        for bit, name in bits.items()
        if pairs.get(key, 0) >> bit & 1
    )


def _sysctl(key: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            ("/usr/sbin/sysctl", "-n", key), capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()
    return ""
