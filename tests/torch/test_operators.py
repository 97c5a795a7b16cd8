"""Operators of PyTorch on the kernels, against PyTorch's own in double precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tracea_graph.config import TOLERANCE

torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test-torch)")

import torch.nn.functional as functional  # noqa: E402
from torch.library import opcheck  # noqa: E402

from tracea_graph.torch import fallback_log, ops, patch_conv2d, patch_module  # noqa: E402
from tracea_graph.torch.modules import attention_kernels  # noqa: E402

pytestmark = pytest.mark.compiler
Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """Draw the same numbers in every test, and let it see its own fallbacks only."""
    torch.manual_seed(0)
    fallback_log._COUNTS.clear()
    yield


def check(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE.kernel_f32) -> None:
    """Compare with a reference, as a share of its largest element."""
    assert found.shape == expected.shape
    apart = (found.double() - expected.double()).abs().max()
    assert apart <= tolerance * expected.double().abs().max()


def twice(function: Callable[..., Tensor], reference: Callable[..., Tensor], *args: Any,
          **options: Any) -> None:  # fmt: skip
    """Compare the first call, the one that packs, and a call of packed weights."""
    double = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    expected = reference(*double, **options)
    for _ in range(3):
        check(function(*args, **options), expected)
    assert fallback_log.fallback_counts() == {}


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 24, 9, 11), (40, 24, 3, 3), {"padding": 1}),
    "winograd": ((1, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
    "strided": ((1, 3, 33, 30), (18, 3, 7, 7), {"stride": 2, "padding": (3, 2)}),
    "dilated, same": ((1, 16, 15, 14), (16, 16, 3, 3), {"padding": "same", "dilation": 2}),
    "depthwise": ((1, 20, 9, 9), (20, 1, 3, 3), {"groups": 20, "padding": "valid"}),
    "groups": ((2, 6, 8, 7), (9, 2, 3, 3), {"groups": 3}),
    "one image": ((16, 9, 9), (8, 16, 1, 1), {}),
    "no image": ((0, 4, 5, 5), (4, 4, 3, 3), {}),
}


@pytest.mark.parametrize("case", [name for name in CONVOLUTIONS if name != "no image"])
def test_convolutions_are_those_of_pytorch(case: str) -> None:
    shape, filters, options = CONVOLUTIONS[case]
    x, w, bias = torch.randn(shape), torch.randn(filters), torch.randn(filters[0])
    twice(ops.conv2d, functional.conv2d, x, w, bias, **options)


def test_no_image_gives_no_result() -> None:
    x, w = torch.empty(0, 4, 5, 5), torch.randn(4, 4, 3, 3)
    assert ops.conv2d(x, w).shape == (0, 4, 3, 3)


def test_images_with_channels_last_stay_so() -> None:
    x = torch.randn(2, 24, 9, 11).to(memory_format=torch.channels_last)
    w = torch.randn(40, 24, 3, 3)
    twice(ops.conv2d, functional.conv2d, x, w, padding=1)
    found = ops.conv2d(x, w, padding=1)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(7,), (5, 7), (2, 3, 7), (0, 7)])
def test_linear_layers_are_those_of_pytorch(shape: tuple[int, ...]) -> None:
    x, w = torch.randn(shape), torch.randn(9, 7)
    if x.numel():
        twice(ops.linear, functional.linear, x, w, torch.randn(9))
    assert ops.linear(x, w).shape == (*shape[:-1], 9)


def test_operands_may_have_any_strides() -> None:
    x, w = torch.randn(2, 7, 5).transpose(1, 2), torch.randn(7, 18)[:, ::2].t()
    twice(ops.linear, functional.linear, x, w)


ATTENTION: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "boolean mask": {"attn_mask": "boolean"},
    "added mask": {"attn_mask": "added"},
}


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_attention_is_that_of_pytorch(case: str, batch: tuple[int, ...]) -> None:
    q, k, v = (torch.randn(*batch, 4, rows, 16) for rows in (17, 19, 19))
    options = dict(ATTENTION[case])
    if options.get("attn_mask") == "boolean":
        options["attn_mask"] = torch.rand(17, 19) > 0.3
    elif options.get("attn_mask") == "added":
        options["attn_mask"] = torch.randn(17, 19).double()
    wide = functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), **options)
    if case == "added mask":
        options["attn_mask"] = options["attn_mask"].float()
    check(ops.scaled_dot_product_attention(q, k, v, **options), wide)
    assert fallback_log.fallback_counts() == {}


def test_heads_of_keys_may_be_shared() -> None:
    q, k, v = torch.randn(1, 6, 5, 16), torch.randn(1, 2, 7, 16), torch.randn(1, 2, 7, 16)
    expected = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    check(ops.scaled_dot_product_attention(q, k, v, enable_gqa=True), expected)
    assert fallback_log.fallback_counts() == {}


# ---- what a tensor library expects of an operator --------------------------------------------


def samples() -> dict[str, tuple[Any, ...]]:
    """Arguments of each operator, some of which want derivatives."""
    x, w = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 3, requires_grad=True)
    q, k = torch.randn(2, 4, 5, 8, requires_grad=True), torch.randn(2, 2, 6, 8)
    return {
        "conv2d": (x, w, torch.randn(4), [1, 1], [1, 1], [1, 1], 1),
        "linear": (torch.randn(2, 5, requires_grad=True), torch.randn(3, 5), None),
        "scaled_dot_product_attention": (q, k, k, None, 0.0, False, None, True),
    }


@pytest.mark.parametrize("name", ["conv2d", "linear", "scaled_dot_product_attention"])
def test_operators_can_be_traced_and_compiled(name: str) -> None:
    """Schemas, fake tensors, autograd and dynamic shapes, by PyTorch's own checks."""
    results = opcheck(getattr(torch.ops.tracea, name).default, samples()[name])
    assert set(results.values()) == {"SUCCESS"}


DERIVED: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Any, ...]]] = {
    "conv2d": (
        lambda x, w, b: ops.conv2d(x, w, b, 2, 1),
        lambda x, w, b: functional.conv2d(x, w, b, 2, 1),
        ((1, 4, 7, 6), (6, 4, 3, 3), (6,)),
    ),
    "linear": (ops.linear, functional.linear, ((2, 3, 5), (4, 5), (4,))),
    "attention": (
        ops.scaled_dot_product_attention, functional.scaled_dot_product_attention,
        ((2, 3, 5, 8), (2, 3, 6, 8), (2, 3, 6, 4), (2, 1, 5, 6)),
    ),
    "causal, shared heads": (
        lambda q, k, v: ops.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True),
        lambda q, k, v: functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True),
        ((1, 4, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DERIVED)
def test_derivatives_are_those_of_pytorch(case: str) -> None:
    own, reference, shapes = DERIVED[case]
    given = [torch.randn(shape, requires_grad=True) for shape in shapes]
    slopes = torch.autograd.grad(own(*given).square().sum(), given)
    expected = torch.autograd.grad(reference(*given).square().sum(), given)
    for one, other in zip(slopes, expected, strict=True):
        check(one, other, 10 * TOLERANCE.kernel_f32)


def test_operators_can_be_mapped() -> None:
    x, w = torch.randn(3, 2, 5), torch.randn(3, 4, 5)
    check(torch.vmap(ops.linear)(x, w), torch.vmap(functional.linear)(x, w))


# ---- weights ---------------------------------------------------------------------------------


def test_changed_weights_are_packed_again() -> None:
    x, w = torch.randn(3, 8), torch.nn.Parameter(torch.randn(5, 8))
    with torch.no_grad():
        for _ in range(3):
            ops.linear(x, w)
        w.mul_(2)
        for _ in range(3):
            check(ops.linear(x, w), functional.linear(x, w))
        w.data = torch.randn(5, 8)
        for _ in range(3):
            check(ops.linear(x, w), functional.linear(x, w))


def test_another_bias_is_not_the_packed_one() -> None:
    x, w = torch.randn(3, 8), torch.randn(5, 8)
    for _ in range(3):
        ops.linear(x, w, torch.zeros(5))
        bias = torch.randn(5)
        check(ops.linear(x, w, bias), functional.linear(x, w, bias))


# ---- fallbacks -------------------------------------------------------------------------------

FALLBACKS: dict[str, tuple[str, Callable[[], Any]]] = {
    "double": ("a tensor is float64", lambda: ops.linear(
        torch.randn(2, 3).double(), torch.randn(4, 3).double())),
    "uneven": ("padding differs between two sides of an axis", lambda: ops.conv2d(
        torch.randn(1, 2, 5, 5), torch.randn(2, 2, 2, 2), padding="same")),
    "dropout": ("dropout_p is not 0", lambda: ops.scaled_dot_product_attention(
        *torch.randn(3, 1, 2, 4, 8), dropout_p=0.5)),
    "axes": ("operands do not all have 3 or 4 axes", lambda: ops.scaled_dot_product_attention(
        *torch.randn(3, 1, 1, 2, 4, 8))),
}  # fmt: skip


@pytest.mark.parametrize("case", FALLBACKS)
def test_what_kernels_cannot_do_runs_in_pytorch(case: str) -> None:
    reason, call = FALLBACKS[case]
    call()
    assert [why for _, why in fallback_log.fallback_counts()] == [reason]


def test_a_fallback_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    x, w = torch.randn(2, 3).double(), torch.randn(4, 3).double()
    with caplog.at_level("INFO", "tracea_graph.torch"):
        check(ops.linear(x, w), functional.linear(x, w))
        ops.linear(x, w)
    assert caplog.messages == ["linear falls back to PyTorch: a tensor is float64"]
    assert list(fallback_log.fallback_counts().values()) == [2]


def test_autocast_falls_back() -> None:
    with torch.autocast("cpu"):
        found = ops.linear(torch.randn(2, 3), torch.randn(4, 3))
    assert found.dtype == torch.bfloat16


@pytest.mark.parametrize("call", [
    lambda: ops.linear(torch.randn(2, 3), torch.randn(4, 5)),
    lambda: ops.conv2d(torch.randn(1, 3, 4, 4), torch.randn(2, 2, 3, 3)),
    lambda: ops.conv2d(torch.randn(1, 3, 2, 4), torch.randn(2, 3, 3, 3)),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match=r"do not fit|are larger"):
        call()


# ---- modules ---------------------------------------------------------------------------------


def network() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, padding_mode="reflect"), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 5),
    )  # fmt: skip


def test_a_patched_model_computes_what_it_did() -> None:
    model, x = network(), torch.randn(2, 3, 16, 16)
    expected, names = model(x), [name for name, _ in model.named_parameters()]
    assert patch_conv2d(model) == 2
    assert patch_module(model) == 1
    assert patch_module(model) == 0
    for _ in range(3):
        check(model(x), expected, 10 * TOLERANCE.kernel_f32)
    assert [name for name, _ in model.named_parameters()] == names
    assert [why for _, why in fallback_log.fallback_counts()] == ["the padding mode is reflect"]


def test_a_patched_model_learns_what_it_did() -> None:
    model, x = network(), torch.randn(2, 3, 16, 16)

    def step() -> list[Tensor]:
        return list(torch.autograd.grad(model(x).square().sum(), list(model.parameters())))

    expected = step()
    patch_module(model)
    for one, other in zip(step(), expected, strict=True):
        check(one, other, 100 * TOLERANCE.kernel_f32)


def test_classes_of_ones_own_are_left() -> None:
    class Doubled(torch.nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    model = torch.nn.Sequential(Doubled(3, 4))
    assert patch_module(model) == 0
    assert type(model[0]) is Doubled


def test_attention_of_a_model_runs_on_the_kernels() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8)
    expected = functional.scaled_dot_product_attention(q, k, v)
    with attention_kernels():
        found = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0)
        functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    check(found, expected)
    assert [why for _, why in fallback_log.fallback_counts()] == ["dropout_p is not 0"]
