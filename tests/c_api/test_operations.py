"""Operations of the C interface against fp64 references, with any strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tracea_graph.config import TOLERANCE
from tracea_graph.kernels.activations import ACTIVATIONS
from tracea_graph.native_library import Conv2dParams, KernelError, NativeLibrary, view
from tracea_graph.ops.attention import AttentionParams
from tracea_graph.ops.conv import ConvParams
from tracea_graph.ops.conv_windows import ConvWindow

Array = npt.NDArray[Any]


def normal(*shape: int, seed: int = 0) -> Array:
    """Float32 from N(0, 1)."""
    return np.random.default_rng([*shape, seed]).standard_normal(shape).astype(np.float32)


def check(found: Array, expected: Array, tolerance: float = TOLERANCE.kernel_f32) -> None:
    """Compare with a reference, as a share of its largest element."""
    assert found.shape == expected.shape
    bound = tolerance * max(float(np.abs(expected).max(initial=0.0)), 1e-30)
    assert np.abs(found - expected).max(initial=0.0) <= bound


def activated(name: str, sums: Array) -> Array:
    return sums if name == "none" else ACTIVATIONS[name].reference([sums])[0]


# ---- products ------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 7, 3), (33, 130, 64), (3, 50, 200), (64, 17, 0)])
@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_a_product_is_that_of_its_matrices(
    kernels: NativeLibrary, shape: tuple[int, int, int], activation: str
) -> None:
    m, n, k = shape
    a, b, bias, c = normal(m, k), normal(k, n, seed=1), normal(n), np.empty((m, n), np.float32)
    expected = activated(activation, a.astype(float) @ b + bias)
    kernels.gemm(view(a), view(b), view(bias), view(c), activation)
    check(c, expected)
    c[:] = np.nan
    kernels.prepare_gemm(view(b), view(bias), activation)(view(a), view(c))
    check(c, expected)


def test_operands_of_a_product_may_be_transposed_repeated_and_reversed(
    kernels: NativeLibrary,
) -> None:
    a, b = normal(4, 6, 8, 32)[:, ::2, ::-1], normal(40, 32).T
    wide = np.zeros((4, 3, 8, 50), np.float32)
    c = wide[..., 3:43]
    kernels.gemm(view(a), view(b), None, view(c))
    check(c, a.astype(float) @ b)
    assert not wide[..., :3].any()
    assert not wide[..., 43:].any()
    each = normal(4, 1, 32, 40)
    kernels.gemm(view(a), view(each), None, view(c))
    check(c, a.astype(float) @ each)


def test_memory_need_only_be_aligned_to_its_elements(kernels: NativeLibrary) -> None:
    a, b = np.empty(12 * 31 + 1, np.float32)[1:].reshape(12, 31), normal(31, 9)
    c = np.empty(12 * 9 + 3, np.float32)[3:].reshape(12, 9)
    a[:] = normal(12, 31)
    kernels.gemm(view(a), view(b), None, view(c))
    check(c, a.astype(float) @ b)
    off = view(a)
    off.ptr += 2
    with pytest.raises(KernelError, match="no multiple of the 4 bytes") as refused:
        kernels.gemm(off, view(b), None, view(c))
    assert refused.value.status == 1


def test_threads_change_no_bit(kernels: NativeLibrary) -> None:
    a, b = normal(300, 200), normal(200, 260)
    one, more = np.empty((300, 260), np.float32), np.empty((300, 260), np.float32)
    kernels.gemm(view(a), view(b), None, view(one))
    kernels.set_threads(3)
    try:
        kernels.gemm(view(a), view(b), None, view(more))
    finally:
        kernels.set_threads(1)
    assert (one == more).all()


# ---- convolutions --------------------------------------------------------------------------

CONVOLUTIONS = {
    "3x3": (2, 24, 9, 11, 40, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "winograd": (1, 64, 28, 28, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "strided": (1, 16, 15, 14, 33, (3, 5), (2, 3), (0, 2, 1, 1), (1, 1), 1),
    "dilated": (1, 16, 15, 14, 16, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1),
    "1x1": (3, 20, 6, 5, 17, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "many taps": (1, 17, 12, 11, 20, (9, 9), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    "one pixel": (3, 20, 1, 1, 17, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "first layer": (2, 3, 20, 22, 18, (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    "depthwise": (1, 20, 9, 9, 20, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 20),
    "groups": (1, 32, 8, 8, 64, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    "odd groups": (2, 6, 8, 7, 9, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
    "no pixel": (1, 4, 0, 3, 4, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "no image": (0, 4, 5, 5, 4, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
}
"""Images, channels, height, width, filters, kernel, stride, padding, dilation, groups."""


def convolution(case: str) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
    """x, w, bias, the expected result, and the parameters of a case."""
    n, c, h, w, o, kernel, stride, padding, dilation, groups = CONVOLUTIONS[case]
    x, weight, bias = normal(n, c, h, w), normal(o, c // groups, *kernel, seed=1), normal(o)
    params = ConvParams(c, o, ConvWindow(kernel, stride, dilation, padding), groups, bias=True)
    if x.size:
        (y,) = params.reference([x.astype(float), weight.astype(float), bias.astype(float)])
    else:
        y = np.zeros((n, o, h, w))
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return x, weight, bias, y, given


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
def test_a_convolution_is_that_of_its_filters(
    kernels: NativeLibrary, case: str, activation: str
) -> None:
    x, w, bias, sums, given = convolution(case)
    params = Conv2dParams.of(**given, activation=activation)
    expected, y = activated(activation, sums), np.full(sums.shape, np.nan, np.float32)
    kernels.conv2d(view(x), view(w), view(bias), view(y), params)
    check(y, expected)
    y[:] = np.nan
    kernels.prepare_conv2d(view(w), view(bias), params)(view(x), view(y))
    check(y, expected)


@pytest.mark.parametrize("case", [*CONVOLUTIONS][:-2])
def test_images_and_filters_may_have_their_channels_last(
    kernels: NativeLibrary, case: str
) -> None:
    x, w, _, expected, given = convolution(case)
    bias = np.zeros(len(w), np.float32)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    w = np.ascontiguousarray(w.transpose(2, 3, 1, 0)).transpose(3, 2, 0, 1)
    expected = expected - normal(len(w)).astype(float)[:, None, None]
    y = np.empty((*np.array(expected.shape)[[0, 2, 3, 1]],), np.float32).transpose(0, 3, 1, 2)
    if case == "odd groups":
        with pytest.raises(KernelError, match="copy it first"):
            kernels.conv2d(view(x), view(w), view(bias), view(y), Conv2dParams.of(**given))
        return
    kernels.conv2d(view(x), view(w), view(bias), view(y), Conv2dParams.of(**given))
    check(y, expected)


@pytest.mark.parametrize(("algorithm", "factor"), [(1, 1.0), (2, 1.0), (3, 10.0)])
def test_a_convolution_is_computed_as_asked(
    kernels: NativeLibrary, algorithm: int, factor: float
) -> None:
    x, w, bias, expected, given = convolution("winograd")
    y = np.empty(expected.shape, np.float32)
    params = Conv2dParams.of(**given, algorithm=algorithm)
    kernels.prepare_conv2d(view(w), view(bias), params)(view(x), view(y))
    check(y, expected, factor * TOLERANCE.kernel_f32)


# ---- attention and norms -------------------------------------------------------------------


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
@pytest.mark.parametrize("causal", [0, 1, 2])
def test_attention_is_softmax_of_scores_times_values(
    kernels: NativeLibrary, heads: tuple[int, int], causal: int
) -> None:
    own, shared = heads
    q, k, v = normal(2, own, 9, 32), normal(2, shared, 13, 32), normal(2, shared, 13, 24)
    y = np.empty((2, own, 9, 24), np.float32)
    layout = ("heads", "heads", "heads", "heads")
    params = AttentionParams(
        own, 32, 24, 32**-0.5, kv_heads=shared, layouts=layout,
        causal=("none", "top", "bottom")[causal],
    )  # fmt: skip
    (expected,) = params.reference([q.astype(float), k.astype(float), v.astype(float)])
    kernels.attention(view(q), view(k), view(v), None, view(y), causal=causal)
    check(y, expected)


def test_rows_of_attention_without_a_key_are_zero(kernels: NativeLibrary) -> None:
    q, k, v = normal(1, 2, 5, 16), normal(1, 2, 7, 16), normal(1, 2, 7, 16)
    mask = np.ones((5, 7), np.bool_)
    mask[2], mask[:, 6] = False, False
    y, added = np.empty_like(q), np.empty_like(q)
    kernels.attention(view(q), view(k), view(v), view(mask), view(y))
    kernels.attention(
        view(q), view(k), view(v), view(np.where(mask, np.float32(0), np.float32(-np.inf))),
        view(added),
    )  # fmt: skip
    assert not y[:, :, 2].any()
    assert not np.isnan(y).any()
    check(added, y.astype(float))
    fewer = np.empty_like(q)
    kernels.attention(view(q), view(k[:, :, :6]), view(v[:, :, :6]), None, view(fewer))
    check(y[:, :, 3], fewer[:, :, 3].astype(float))


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 130), (2, 3, 64), (0, 5)])
def test_rows_are_normalized(kernels: NativeLibrary, rms: bool, shape: tuple[int, ...]) -> None:
    x, gamma, y = normal(*shape), normal(shape[-1], seed=1), np.empty(shape, np.float32)
    wide = x.astype(float)
    centred = wide if rms else wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma
    kernels.norm(view(x), view(gamma), None, view(y), rms=rms)
    check(y, expected)
