"""Dialects: the languages that kernel templates are rendered in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tracea_graph.kernels.gpu.architecture import Architecture
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, MatrixLoad

__all__ = ["CUDA", "HIP", "HOST", "Dialect", "Target"]


@dataclass(frozen=True)
class Dialect:
    """A language: the header that defines the templates' primitives, and its parameters.

    ``lacks`` names the templates that use primitives which the header does not define.
    """

    name: str
    words: str
    parameters: dict[str, Any] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Target:
    """Target of code generation: a dialect, and the architecture whose limits apply."""

    dialect: Dialect
    architecture: Architecture


def _places(transposed: bool) -> str:
    """Return row and column of the two elements that each lane gets, as C initializers."""
    load = MatrixLoad(((0, 0),) * 4, transposed)
    pairs = ([load.got(lane, e) for e in (0, 1)] for lane in range(32))
    return ", ".join(f"{{{{{a}, {b}}}, {{{c}, {d}}}}}" for (a, b), (c, d) in pairs)


CUDA = Dialect("cuda", "dialect_cuda.h")
HIP = Dialect(
    "hip",
    "dialect_hip.h",
    lacks=frozenset(
        f"{name}.cu.in"
        for name in (
            "dequantize",
            "gemm",
            "gemm_blocks",
            "gemm_blocks_wgmma",
            "gemm_bytes",
            "gemm_bytes_wgmma",
            "gemm_few",
            "gemm_gated_wgmma",
            "gemm_grouped_wgmma",
            "gemm_low_rank_depth_wgmma",
            "gemm_low_rank_wgmma",
            "gemm_nbits",
            "gemm_nbits_few",
            "gemm_nbits_one",
            "gemm_normed_wgmma",
            "gemm_one",
            "gemm_two_of_four",
            "gemm_two_of_four_wgmma",
            "gemm_wgmma",
            "conv",
            "conv_bytes",
            "conv_bytes_wgmma",
            "conv_few",
            "conv_wgmma",
            "attention",
            "attention_cached",
            "attention_few",
            "attention_grouped",
            "attention_projection",
            "attention_quantized",
            "attention_quantized_many",
            "attention_split",
            "attention_wgmma",
            "depthwise_expanded",
            "depthwise_lanes",
            "depthwise_projection",
            "mlp",
        )
    ),
)
"""AMD GPUs: the kernels without matrix instructions and asynchronous copies.  There is no runtime
for them yet; tests compile every such kernel.
"""
HOST = Dialect(
    "host",
    "dialect_host.h",
    {
        "plain_places": _places(False),
        "turned_places": _places(True),
        "atoms": [atom for atom in ATOMS.values() if atom.kind in ("f16", "bf16", "tf32")],
    },
)
"""C++ on the CPU, which runs the threads of a block one after the other."""
