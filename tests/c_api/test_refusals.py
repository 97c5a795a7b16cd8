"""What the C interface refuses, in which words, and that it never faults."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracea_graph.commands.build_kernel_library import build_kernels
from tracea_graph.errors import UsageError
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.native_library import Conv2dParams, KernelError, NativeLibrary, TensorView, view

INVALID, UNSUPPORTED = 1, 2
A, B, C = (np.zeros(shape, np.float32) for shape in ((4, 6), (6, 8), (4, 8)))


def changed(array: Any, **fields: Any) -> TensorView:
    """A view with other fields; ``shape`` and ``stride`` replace the first axes."""
    made = view(array)
    for name, value in fields.items():
        if isinstance(value, tuple):
            getattr(made, name)[: len(value)] = value
        else:
            setattr(made, name, value)
    return made


GEMM: dict[str, tuple[Callable[[], tuple[Any, ...]], int, str]] = {
    "no memory": (lambda: (changed(A, ptr=None), view(B), None, view(C)), INVALID, "a has el"),
    "no tensor": (lambda: (view(A), None, None, view(C)), INVALID, "b is missing"),
    "axes": (lambda: (changed(A, rank=1), view(B), None, view(C)), INVALID, "a has 1 axes"),
    "many axes": (lambda: (changed(A, rank=99), view(B), None, view(C)), INVALID, "a has 99 axes"),
    "negative": (lambda: (changed(A, shape=(-1,)), view(B), None, view(C)), INVALID, "size -1"),
    "huge": (
        lambda: (changed(A, shape=(1 << 40,), stride=(1 << 40, 1)), view(B), None, view(C)),
        INVALID, "larger than memory",
    ),
    "type": (lambda: (changed(A, dtype=16), view(B), None, view(C)), UNSUPPORTED, "type 16"),
    "no type": (lambda: (changed(A, dtype=77), view(B), None, view(C)), INVALID, "type 77"),
    "device": (lambda: (changed(A, device_id=0), view(B), None, view(C)), UNSUPPORTED, "device 0"),
    "bias": (lambda: (view(A), view(B), view(C[0, :5]), view(C)), INVALID, "bias has 5 numbers"),
    "shared": (lambda: (view(A), view(B), None, changed(C, ptr=A.ctypes.data)), INVALID, "with a"),
    "repeated": (lambda: (view(A), view(B), None, changed(C, stride=(0, 1))), INVALID, "over e"),
    "columns": (lambda: (view(A), view(B), None, changed(C, stride=(1, 4))), UNSUPPORTED, "e 4"),
    "shapes": (lambda: (view(A), view(A), None, view(C)), INVALID, "do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("case", GEMM)
def test_operands_that_make_no_sense_are_refused(kernels: NativeLibrary, case: str) -> None:
    make, status, words = GEMM[case]
    with pytest.raises(KernelError, match=words) as refused:
        kernels.gemm(*make())
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stride": (0, 1)}, "Strides, dilations and groups"),
        ({"padding": (-1, 0, 0, 0)}, "paddings 0 to 65536"),
        ({"groups": 3}, "which 3 groups cannot share"),
        ({"algorithm": 9}, "no algorithm 9"),
        ({"groups": 2}, "do not fit"),
    ],
)
def test_parameters_of_a_convolution_are_checked(
    kernels: NativeLibrary, given: dict[str, Any], words: str
) -> None:
    x, w, y = (np.zeros(s, np.float32) for s in ((1, 4, 5, 5), (4, 4, 3, 3), (1, 4, 3, 3)))
    with pytest.raises(KernelError, match=words):
        kernels.conv2d(view(x), view(w), None, view(y), Conv2dParams.of(**given))


def test_parameters_of_another_version_are_told_apart(kernels: NativeLibrary) -> None:
    x, w, y = (np.zeros(s, np.float32) for s in ((1, 4, 5, 5), (4, 4, 3, 3), (1, 4, 3, 3)))
    params = Conv2dParams.of()
    params.struct_size = ctypes.sizeof(params) - 8  # an older caller: no activation, no algorithm
    params.activation = params.algorithm = 99
    kernels.conv2d(view(x), view(w), None, view(y), params)
    longer = (ctypes.c_char * (ctypes.sizeof(params) + 4)).from_buffer_copy(
        bytes(Conv2dParams.of()) + b"\0\0\0\1"
    )
    newer = ctypes.cast(longer, ctypes.POINTER(Conv2dParams)).contents
    newer.struct_size = len(longer)
    with pytest.raises(KernelError, match="this version of the library lacks"):
        kernels.conv2d(view(x), view(w), None, view(y), newer)


def test_plans_are_checked_word_by_word(kernels: NativeLibrary) -> None:
    with pytest.raises(KernelError, match="The plan's first word is 1"):
        kernels.run_program([1, 2, 3], [view(A)], [view(C)])


def test_random_views_never_fault(kernels: NativeLibrary) -> None:
    """Sizes and strides of any kind within memory that is there, and parameters of any kind."""
    r = random.Random(0)
    memory = [np.zeros(1 << 16, np.float32) for _ in range(4)]

    def drawn(array: Any, rank: int) -> TensorView:
        made = changed(array, rank=rank, ptr=array.ctypes.data + 4 * (1 << 15))
        left = 1 << 13
        for axis in range(rank):
            made.shape[axis] = r.choice((0, 1, 1, 2, 3, 4, 5, 8, -1))
            made.stride[axis] = r.choice((0, 1, 1, made.shape[axis - 1], -1, 5, 16, 40))
            left = left // max(1, made.shape[axis])
        return made

    statuses = set[int]()
    for turn in range(3000):
        rank = r.choice((2, 2, 3, 4)) if turn % 2 else 4
        x, w, y = (drawn(m, rank) for m in memory[:3])
        row = r.choice((None, drawn(memory[3], 1)))
        params = Conv2dParams.of(
            stride=(r.choice((0, 1, 2)), 1), padding=(r.choice((0, 1)), 0, 1, 0),
            groups=r.choice((1, 1, 2, 4)), algorithm=r.choice((0, 1, 2, 3)),
        )  # fmt: skip
        calls: tuple[Callable[[], Any], ...] = (
            lambda x=x, w=w, row=row, y=y, p=params: kernels.conv2d(x, w, row, y, p),
            lambda x=x, w=w, row=row, y=y: kernels.gemm(x, w, row, y),
            lambda x=x, w=w, y=y: kernels.attention(x, w, w, None, y, causal=1),
            lambda x=x, row=row, y=y: kernels.norm(x, row, None, y),
        )
        for call in calls:
            try:
                call()
                statuses.add(0)
            except KernelError as error:
                assert str(error)
                assert "views of" not in str(
                    error
                )  # the executor's words for what slipped through
                statuses.add(error.status)
    assert statuses == {0, INVALID, UNSUPPORTED}


def test_a_library_says_what_it_does_not_hold(tmp_path: Path) -> None:
    built = build_kernels(("norm",), tmp_path, levels=host_levels()[-1:])
    library = NativeLibrary(built.path)
    with pytest.raises(KernelError, match="holds no kernel for gemm") as refused:
        library.gemm(view(A), view(B), None, view(C))
    assert refused.value.status == UNSUPPORTED
    with pytest.raises(KernelError, match="no code for activation"):
        library.gemm(view(A), view(B), None, view(C), "gelu")
    with pytest.raises(UsageError, match="cannot hold 'convolve'"):
        build_kernels(("convolve",), tmp_path)
