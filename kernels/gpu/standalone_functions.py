"""Functions of the C interface on a GPU: plans whose sizes and strides are symbols.

The library fills symbols in from the tensors of a call (``runtime/c_api.h``), so one plan serves
all shapes.  Buffers are spans of elements: views say where in them a tensor's elements lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from tracea_graph.ir import DType, Extent, TensorSpec, combine, product
from tracea_graph.kernels.activations import ACTIVATIONS
from tracea_graph.kernels.gpu import plan_encoding
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import Choice, kernel_of, launches_of
from tracea_graph.kernels.gpu.launch import MOST
from tracea_graph.kernels.gpu.variants import VARIANTS, Variant
from tracea_graph.kernels.program import (
    Attributes,
    Buffer,
    Call,
    LibraryContents,
    Program,
    Temp,
    View,
)
from tracea_graph.ops.chain import Chain

__all__ = ["OPS", "DeviceFunction", "functions", "functions_of", "kernels_of_functions"]

OPS = ("gemm", "conv2d")
"""Functions of ``tracea.h`` that compute on a GPU, in the order of their numbers in the table."""
_TYPES = {DType.F32: "tf32x3", DType.F16: "f16", DType.BF16: "bf16"}
"""Compute type in which operands of each element type are multiplied."""
_TILES = {
    ("gemm", "tf32x3"): ("128x64x16x4", "32x64x32x4"),
    ("gemm", "f16"): ("128x128x64x6x2", "128x128x32x4", "32x64x64x4"),
    ("gemm", "bf16"): ("128x128x64x6x2", "128x128x32x4", "32x64x64x4"),
    ("conv", "tf32x3"): ("128x64x16x4", "64x64x32x3"),
    ("conv", "f16"): ("128x128x32x4", "64x64x64x3"),
    ("conv", "bf16"): ("128x128x32x4", "64x64x64x3"),
}  # fmt: skip
"""Tiles by op and compute type: all but the last are for many rows."""
_MANY_ROWS = 1024
_SPANS = ("x_span", "w_span", "bias_span", "y_span")
SYMBOLS = {
    "gemm": (*_SPANS, "rows", "cols", "depth", "x_m", "x_k", "w_n", "w_k", "bias_n", "y_m",
             "uneven"),
    "conv2d": (
        *_SPANS, "n", "h", "w", "c", "o", "kh", "kw", "p", "q", "x_n", "x_h", "x_w", "x_c",
        "w_o", "w_c", "w_h", "w_w", "bias_n", "y_n", "y_h", "y_w", "y_c", "stride_h", "stride_w",
        "dilation_h", "dilation_w", "pad_h", "pad_w",
    ),
}  # fmt: skip
"""Symbols of a function's plans, in the order in which the library fills them in."""


@dataclass(frozen=True)
class DeviceFunction:
    """A function for one element type, form of its operands, and activation.

    The ``form`` of ``gemm`` is 1 if b is stored as ``[N, K]``, else 0.  The ``form`` of ``conv2d``
    is 1 if x and y are channels-last without gaps, else 0.  ``activation`` is the number of the
    activation, from 1; 0 means none.
    """

    op: str
    dtype: DType
    form: int
    activation: int
    words: tuple[int, ...]
    kernels: tuple[str, ...]
    chains: tuple[Chain, ...]

    @property
    def key(self) -> tuple[int, int, int, int]:
        return OPS.index(self.op), int(self.dtype.onnx), self.form, self.activation


def kernels_of_functions(ops: Sequence[str]) -> LibraryContents:
    """Return the kernels and elementwise expressions that the functions of some ops need."""
    found = [f for f in functions() if f.op in ops]
    kernels = sorted({kernel for f in found for kernel in f.kernels})
    chains = tuple(dict.fromkeys(chain for f in found for chain in f.chains))
    return LibraryContents(kernels=tuple(kernels), chains=chains)


def functions_of(kernels: Iterable[str]) -> tuple[DeviceFunction, ...]:
    """Return the functions whose kernels a library has."""
    held = {*kernels}
    return tuple(f for f in functions() if held.issuperset(f.kernels))


@cache
def functions() -> tuple[DeviceFunction, ...]:
    """Return every function."""
    return tuple(
        made
        for dtype in _TYPES
        for form in (0, 1)
        for activation, name in enumerate((None, *ACTIVATIONS))
        for made in (_gemm(dtype, form, activation, name), _conv(dtype, form, activation, name))
    )


def _chain(name: str | None, dtype: DType) -> Chain | None:
    if name is None:
        return None
    stores = () if dtype is DType.F32 else (dtype,)
    return replace(ACTIVATIONS[name], stores=stores)


def _gemm(dtype: DType, form: int, activation: int, name: str | None) -> DeviceFunction:
    x, w, bias = (Buffer("input", i) for i in range(3))
    dims: tuple[Extent, ...] = ("cols", "depth") if form else ("depth", "cols")
    steps: tuple[Extent, ...] = ("w_n", 1) if form else ("w_k", 1)
    call = CALLS.make(
        "gemm", _TYPES[dtype], layout="nk" if form else "kn", chain=_chain(name, dtype), inputs=[],
        x=View(x, ("rows", "depth"), ("x_m", 1)), w=View(w, dims, steps),
        bias=View(bias, ("cols",), ("bias_n",)),
        y=[View(Buffer("output", 0), ("rows", "cols"), ("y_m", 1))],
    )  # fmt: skip
    general = replace(call, views=tuple(map(_strided, call.views)))
    return _function("gemm", dtype, form, activation, [call], {0: general}, ())


def _strided(view: View | None) -> View | None:
    """Return an operand of a matmul with a symbol for each of its strides."""
    names = {("x_m", 1): ("x_m", "x_k"), ("w_n", 1): ("w_n", "w_k"), ("w_k", 1): ("w_k", "w_n")}
    return view and replace(view, strides=names.get(view.strides, view.strides))  # type: ignore[arg-type]


def _conv(dtype: DType, form: int, activation: int, name: str | None) -> DeviceFunction:
    x, w, bias = (Buffer("input", i) for i in range(3))
    y, size = Buffer("output", 0), int(dtype.size)
    image: tuple[Extent, ...] = ("n", "h", "w", "c")
    filters: tuple[Extent, ...] = ("o", "kh", "kw", "c")
    result: tuple[Extent, ...] = ("n", "p", "q", "o")
    given = View(x, image, ("x_n", "x_h", "x_w", "x_c"))
    taken = View(y, result, ("y_n", "y_h", "y_w", "y_c"))
    weight = View(w, filters, ("w_o", "w_h", "w_w", "w_c"))
    packed = View.dense(Buffer("temp", 0), filters)
    calls = [_copy(size, weight, packed)]
    temps = [Temp(dtype, product(filters), 0, 1 if form else 2)]
    if form:
        source = View(x, image, (*given.strides[:3], 1))
        pixel = ("y_w", "q", "p")
        rows, images = (product(pixel[: 2 + i]) for i in range(2))
        target = View(y, result, (images, rows, "y_w", 1))
    else:
        source, target = (View.dense(Buffer("temp", i), s) for i, s in ((1, image), (2, result)))
        calls.append(_copy(size, given, source))
        temps += [Temp(dtype, product(image), 1, 2), Temp(dtype, product(result), 2, 3)]
    made = CALLS.make(
        "conv", _TYPES[dtype], chain=_chain(name, dtype), inputs=[], x=source, w=packed,
        bias=View(bias, ("o",), ("bias_n",)), y=[target], strides=(1, 1), dilations=(1, 1),
        pads=(0, 0),
    )  # fmt: skip
    window = {
        "strides": ("stride_h", "stride_w"), "dilations": ("dilation_h", "dilation_w"),
        "pads": ("pad_h", "pad_w"),
    }  # fmt: skip
    calls.append(replace(made, attributes=Attributes({**made.attributes, **window}.items())))
    calls += [] if form else [_copy(size, target, taken)]
    return _function("conv2d", dtype, form, activation, calls, {}, temps)


def _copy(size: int, source: View, target: View) -> Call:
    return CALLS.make("copy", f"b{size}", x=source, y=target)


def _function(
    op: str, dtype: DType, form: int, activation: int, calls: Sequence[Call],
    general: dict[int, Call], temps: Sequence[Temp],
) -> DeviceFunction:  # fmt: skip
    """Encode calls; ``general`` has the form of a call for kernels that use no tensor maps."""
    spans = [TensorSpec(d, (s,)) for d, s in zip((dtype, dtype, DType.F32), _SPANS, strict=False)]
    program = Program(
        tuple(spans), (TensorSpec(dtype, ("y_span",)),), dict.fromkeys(SYMBOLS[op], (0, 0)),
        tuple(temps), tuple(calls),
    )  # fmt: skip
    choices = {i: list(_choices(call, general.get(i, call))) for i, call in enumerate(calls)}
    launches = [launches_of(choices[i]) for i in range(len(calls))]
    kernels = tuple(kernel_of(c, v) for listed in choices.values() for c, v, _ in listed)
    chains = tuple(call.chain for call in calls if call.chain)
    words = plan_encoding.encode(program, launches)
    return DeviceFunction(op, dtype, form, activation, words, kernels, chains)


def _choices(call: Call, general: Call) -> Iterator[Choice]:
    """Return the kernels of a call, best first."""
    if call.op == "copy":
        yield call, _variant(call, "256x16"), 1
        return
    tiles = _TILES[call.op, call.dtype]
    rows = product(CALLS.of(call).named(call)["y"][0].dims[:-1])  # type: ignore[index, union-attr]
    for tile in tiles:
        variant = _variant(call, tile)
        maps = variant.template == "gemm_wgmma.cu.in"
        when: Extent = 1 if tile == tiles[-1] else combine("sub", rows, _MANY_ROWS - 1)
        if maps:  # x and w are contiguous along their last axes
            when = combine("sub", when, combine("mul", "uneven", MOST))
        yield (call if maps else general), variant, when


def _variant(call: Call, tile: str) -> Variant:
    (found,) = (v for v in VARIANTS if (v.op, v.dtype, v.tile) == (call.op, call.dtype, tile))
    return found
