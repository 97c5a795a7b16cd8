"""Programs of products and attention in bf16, and what NumPy makes of the rounded operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.runtime.attention_tile_cases import attention_tile_bf16_cases
from tests.runtime.caches import attended
from tests.runtime.sparse_cases import SPARSE_CHAIN
from tests.runtime.support import Case, bf16_product, normal, operator_case, spec
from tracea_graph.kernels.cpu.panels import VNNI2, WEIGHT_ONLY_BF16, pack_vnni2
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.gemm import GemmParams
from tracea_graph.ops.weight_layouts import WeightLayout

__all__ = ["bf16_cases"]


def _product(
    layout: WeightLayout,
    m: int,
    k: int,
    n: int,
    chain: Chain | None = None,
    parts: tuple[int, ...] = (),
) -> Case:
    """A product with a matrix in bf16: ``vnni2`` rounds x too, ``weight_only_bf16`` does not."""
    params = GemmParams(k, n, layout, True, chain, splits=parts)
    kind = "chain" if chain else "parts" if parts else "plain"
    name = f"bf16_{layout.name}_{m}x{k}x{n}_{kind}"
    return bf16_product(name, m, params, pack_vnni2(normal(k, n, seed=1)))


def _attention(name: str, queries: int, keys: int, **more: Any) -> Case:
    heads: dict[str, Any] = {"heads": 4, "head": 16, "head_v": 32, "scale": 0.25, "kv_heads": 2}
    params = replace(AttentionParams(widths=(64, 32, 64), in_bf16=True, **heads), **more)
    shapes = ((2, queries, 64), (2, keys, 32), (2, keys, 64))
    feeds = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    specs = [spec("b", "s", 64), spec("b", "t", 32), spec("b", "t", 64)]
    if params.mask == "add":
        mask = normal(2, 1, 1, keys, seed=3)
        feeds.append(np.where(mask > 0.8, np.float32(-1e9), mask))
        specs.append(spec("b", 1, 1, "t"))
    return operator_case(f"bf16_attention_{name}", "FusedAttention", params, specs, feeds)


def bf16_cases() -> tuple[Case, ...]:
    return (
        *(
            _product(layout, m, k, n)
            for layout in (VNNI2, WEIGHT_ONLY_BF16)
            for m, k, n in ((1, 2, 1), (3, 8, 33), (16, 300, 48), (130, 514, 97))
        ),
        *(_product(layout, 37, 132, 72, SPARSE_CHAIN) for layout in (VNNI2, WEIGHT_ONLY_BF16)),
        _product(VNNI2, 3, 7, 33),
        _product(VNNI2, 37, 24, 160, parts=(48, 16, 96)),
        *(_attention(f"{s}_of_{t}", s, t) for s, t in ((1, 1), (1, 300), (5, 40), (130, 70))),
        *(
            _attention(f"whole_{s}_of_{t}", s, t, whole=True)
            for s, t in ((4, 40), (5, 40), (130, 70))
        ),
        attended("rounded", (7, 140, 0), 30, 300, in_bf16=True, whole=True),
        _attention("ordered", 60, 200, causal="bottom", mask="add", fill=-1e9),
        _attention("near", 90, 90, window=(39, 0), global_keys=3, causal="bottom"),
        _attention("capped", 30, 70, softcap=2.0),
        *attention_tile_bf16_cases(),
    )
