"""Ask the policy for a kernel, find it in a built library, and launch it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracea_graph as tg
from tests.graphs import normal
from tracea_graph.commands.build_kernel_library import KernelLibrary
from tracea_graph.config import Environment
from tracea_graph.hardware import profile_cpu
from tracea_graph.kernels.cpu.core_measurement import assumed_figures
from tracea_graph.kernels.cpu.machine_model import CpuDiagnostics
from tracea_graph.native_library import Conv2dParams, NativeLibrary, view

pytestmark = pytest.mark.compiler
Array = np.ndarray[Any, Any]
Launch = Callable[[NativeLibrary, tuple[int, ...]], tuple[Array, Array]]


def gemm(kernels: NativeLibrary, shape: tuple[int, ...]) -> tuple[Array, Array]:
    m, n, k = shape
    a, b, c = normal(m, k), normal(k, n), np.empty((m, n), np.float32)
    kernels.gemm(view(a), view(b), None, view(c))
    return c, a.astype(float) @ b


def conv2d(kernels: NativeLibrary, shape: tuple[int, ...]) -> tuple[Array, Array]:
    batch, channels, height, width, filters, side = shape
    x, w = normal(batch, channels, height, width), normal(filters, channels, side, side)
    y, pad = np.empty((batch, filters, height, width), np.float32), side // 2
    kernels.conv2d(view(x), view(w), None, view(y), Conv2dParams.of((1, 1), (pad,) * 4))
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), (2, 3))
    return y, np.einsum("bchwuv,ocuv->bohw", windows, w)


def attention(kernels: NativeLibrary, shape: tuple[int, ...]) -> tuple[Array, Array]:
    batch, heads, queries, keys, head = shape
    q, k, v = (normal(batch, heads, n, head) for n in (queries, keys, keys))
    y = np.empty_like(q)
    kernels.attention(view(q), view(k), view(v), None, view(y))
    scores = np.exp(q.astype(float) @ k.swapaxes(2, 3) / np.sqrt(head))
    return y, scores / scores.sum(-1, keepdims=True) @ v


def norm(kernels: NativeLibrary, shape: tuple[int, ...]) -> tuple[Array, Array]:
    x = normal(*shape)
    y = np.empty_like(x)
    kernels.norm(view(x), None, None, view(y))
    wide = x - x.mean(-1, keepdims=True, dtype=float)
    return y, wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)


@pytest.mark.parametrize(
    ("op", "shape", "launch"),
    [
        ("gemm", (33, 70, 40), gemm), ("conv2d", (1, 20, 9, 11, 18, 3), conv2d),
        ("flash_attention_2", (2, 3, 17, 19, 16), attention), ("norm", (5, 48), norm),
    ],
)  # fmt: skip
def test_the_kernel_that_the_policy_names_is_built_and_launched(
    op: str, shape: tuple[int, ...], launch: Launch, built: KernelLibrary,
    kernels: NativeLibrary, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    figures = assumed_figures(profile_cpu())
    monkeypatch.setattr(CpuDiagnostics, "measure", lambda *args, **more: figures)
    context = tg.Context("host", Environment(cache=Path("unused")))
    plan = context.plan_kernel(op, shape)
    assert plan.shape == shape and plan.level == kernels.isa == built.levels[-1]
    held = json.loads(built.path.with_suffix(".json").read_text())["kernels"]
    (found,) = (one for one in held if one["name"] == plan.variant_id)
    assert found["level"] == plan.level and found["resources"]["code_bytes"] > 0
    result, expected = launch(kernels, plan.shape)
    assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()
