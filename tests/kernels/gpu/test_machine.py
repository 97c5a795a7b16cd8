"""The machine that runs kernels here tells what a GPU would leave undefined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels.gpu.machine import Memory, run_here
from tracea_graph.ir import DType
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.dialect import HOST, Target
from tracea_graph.kernels.gpu.emitter import kernel_preamble
from tracea_graph.kernels.gpu.kernel_source import KernelSource
from tracea_graph.kernels.gpu.launch import Launch, pointer

pytestmark = pytest.mark.compiler


@pytest.fixture
def run() -> Callable[..., np.ndarray]:
    """Run a body of a kernel on 64 threads over 64 floats ``x``; what is in ``y`` afterwards."""

    def one(body: str, seed: int = 0, shared: int = 1024) -> np.ndarray:
        words = kernel_preamble(Target(HOST, ARCHITECTURES["sm_80"]))
        text = f"{words}namespace tracea {{\nKERNEL(k, 64, 1)(const float* x, float* y) {{\n"
        text += f"const i32 t = thread(); float* s = (float*)arena();\n{body}\n}}\n}}\nEXPORT(k)\n"
        memory = Memory()
        x = memory.put(np.arange(64, dtype=np.float32))
        y = memory.empty((64,), np.float32)
        launch = Launch("k", (1, 1, 1), 64, shared, tuple(pointer(v, DType.F32) for v in (x, y)))
        run_here(KernelSource("k", text, 64, shared), launch, memory, seed)
        return memory.of(y)

    return one


def test_threads_meet_at_barriers(run: Callable[..., np.ndarray]) -> None:
    for seed in range(4):
        y = run("s[t] = x[t]; sync_block(); y[t] = s[63 - t];", seed)
        assert np.array_equal(y, np.arange(64)[::-1])


def test_a_missing_barrier_shows(run: Callable[..., np.ndarray]) -> None:
    wrong = [run("s[t] = x[t]; y[t] = s[63 - t];", seed) for seed in range(3)]
    assert all(np.isnan(y).any() for y in wrong)


def test_lanes_exchange(run: Callable[..., np.ndarray]) -> None:
    y = run("y[t] = shuffle_xor(x[t], 5);", 3)
    assert np.array_equal(y, np.arange(64) ^ 5)


def test_copies_come_as_late_as_waits_allow(run: Callable[..., np.ndarray]) -> None:
    copies = """if (t < 16) copy_async(s + 4 * t, x + (t < 8 ? 4 * t : 0), t < 8 ? 16 : 4);
commit_copies(); commit_copies();
wait_copies<%d>(); sync_block(); y[t] = s[t]; wait_copies<0>();"""
    y = run(copies % 1, 2)
    assert np.array_equal(y[:32], np.arange(32))
    assert not y[32:].any()  # of 4 bytes the first element came, which is 0, and zeros
    assert np.isnan(run(copies % 2)[:32]).any()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("if (t) sync_block();", "waits at a barrier that others do not reach"),
        ("if (t % 2) shuffle_xor(1, 1); else sync_warp();", "in another instruction than"),
        ("if (t) shuffle_xor(1, 1);", "waits for lanes of its warp that do not come"),
        ("if (!t) s[256] = 1;", "wrote beyond the block's shared memory"),
        ("copy_async(s, x, 16);", "ends with copies on their way"),
        ("copy_async(s + 1, x, 16); commit_copies(); wait_copies<0>();", "no multiple of it"),
    ],
)
def test_what_is_undefined_is_told(body: str, said: str, run: Callable[..., np.ndarray]) -> None:
    with pytest.raises(AssertionError, match=said):
        run(body)
