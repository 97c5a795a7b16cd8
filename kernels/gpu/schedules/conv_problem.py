"""Convolutions as tuning problems: channels-last, for any number of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from tracea_graph.ir import DType, Extent, TensorSpec
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.convolution_choice import FEW_PIXELS, WINDOWS
from tracea_graph.kernels.gpu.families.convolution import is_of_volumes
from tracea_graph.kernels.gpu.kernel_selection import variants_of
from tracea_graph.kernels.gpu.schedule import IMAGE_SCHEDULES
from tracea_graph.kernels.gpu.schedules.matmul_problem import TensorCoreProblem
from tracea_graph.kernels.program import Buffer, Call, Program, Schedule, View
from tracea_graph.ops.chain import Chain
from tracea_graph.ops.index_map import dense_strides
from tracea_graph.policy import OperatorTopology

__all__ = ["ConvolutionProblem", "conv_from_json", "conv_of"]

_KINDS = ("full", "row", "scalar")
"""How an epilogue operand is broadcast: not at all, over the pixels, or over all numbers."""


@dataclass(frozen=True)
class ConvolutionProblem(TensorCoreProblem):
    """One convolution ``y = epilogue(x * w + bias)`` for any number of images.

    ``image`` and ``result`` are (height, width, channels) of x and y.  ``reads`` has the kind of
    broadcast of each epilogue operand.  ``static`` says whether the model fixes the number of
    images.
    """

    image: tuple[int, int, int]
    result: tuple[int, int, int]
    kernel: tuple[int, int]
    multiplies: str
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int] = (0, 0)
    bias: bool = True
    epilogue: Chain | None = None
    reads: tuple[str, ...] = ()
    static: bool = False
    op: ClassVar[str] = "conv"

    @property
    def n(self) -> int:
        """Number of filters."""
        return self.result[2]

    @property
    def k(self) -> int:
        """Depth of the matmul: taps of a filter times channels."""
        return prod(self.kernel) * self.image[2]

    @property
    def defaults(self) -> tuple[Schedule, ...]:
        """The tile that the backend's rule chooses for each range of image counts."""
        return IMAGE_SCHEDULES

    @property
    def unit(self) -> str:
        return "image"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the filters."""
        return self.k * self.n * int(self.element.size)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name, as in telemetry and entry points of candidates."""
        return {"k": self.k, "n": self.n}

    @property
    def key(self) -> dict[str, Any]:
        """JSON-ready values that identify the problem in the cache."""
        return {
            "kernel": Call.name_of("conv", self.multiplies), "image": list(self.image),
            "result": list(self.result), "window": list(self.kernel),
            "strides": list(self.strides), "dilations": list(self.dilations),
            "pads": list(self.pads), "bias": self.bias, "reads": list(self.reads),
            "epilogue": self.epilogue.text if self.epilogue else "", "static": self.static,
        }  # fmt: skip

    def topology(self, rows: int) -> OperatorTopology:
        """Return the topology of the call for ``rows`` images."""
        pixels = self.matrix_rows(rows)
        return OperatorTopology("conv", pixels, self.n, self.k, dtype=self.multiplies)

    def matrix_rows(self, images: int) -> int:
        """Return the number of rows of the matmul, which are the pixels of the results."""
        return images * prod(self.result[:2])

    def flops(self, rows: int) -> float:
        """Return the number of operations for ``rows`` images."""
        return 2.0 * self.matrix_rows(rows) * self.k * self.n

    def moved(self, rows: int) -> float:
        """Return the bytes of filters, x and results of ``rows`` images, each counted once."""
        size = float(self.element.size)
        return self.weight_bytes + size * rows * (prod(self.image) + prod(self.result))

    def __str__(self) -> str:
        name, (h, w, c) = Call.name_of("conv", self.multiplies), self.image
        window = f"{self.kernel[0]}x{self.kernel[1]}/{self.strides[0]}"
        end = " + epilogue" if self.epilogue else ""
        return f"{name} {window} {h}x{w} {c}->{self.n}{end}"

    def program(self, schedules: tuple[Schedule, ...] = (), rows: Extent = "m") -> Program:
        """Build a program of this call only.

        Its last input is the result of the node before it when a chain of such nodes is timed; the
        program does not read it.
        """
        inputs, outputs = list[TensorSpec](), list[TensorSpec]()

        def taken(dtype: DType, *shape: Extent) -> View:
            inputs.append(TensorSpec(dtype, shape))
            return View.dense(Buffer("input", len(inputs) - 1), shape)

        shape = (rows, *self.result)
        x, w = taken(self.element, rows, *self.image), self.kernel
        named: dict[str, Any] = {"x": x, "w": taken(self.element, self.n, *w, self.image[2])}
        named["bias"] = taken(DType.F32, self.n) if self.bias else None
        chain, more = self.epilogue, list[View]()
        types = chain.operand_types[1:] if chain else ()
        for kind, dtype in zip(self.reads, types, strict=True):
            if kind == "full":
                more.append(taken(dtype, *shape))
                continue
            held = taken(dtype, self.n if kind == "row" else 1)
            more.append(View(held.buffer, shape, (0, 0, 0, int(kind == "row"))))
        named["inputs"], named["y"] = more, []
        for dtype in chain.result_types if chain else (self.element,):
            outputs.append(TensorSpec(dtype, shape))
            named["y"].append(View.dense(Buffer("output", len(outputs) - 1), shape))
        call = CALLS.make(
            "conv", self.multiplies, chain=chain, schedules=schedules, strides=self.strides,
            dilations=self.dilations, pads=self.pads, **named,
        )  # fmt: skip
        inputs.append(outputs[0])
        return Program(tuple(inputs), tuple(outputs), {"m": (0, 0)}, (), (call,))

    def call(self, rows: int, schedules: tuple[Schedule, ...] = ()) -> Call:
        """Return the call; its number of images is symbolic unless the model fixes it."""
        return self.program(schedules, rows if self.static else "m").calls[0]


def conv_of(call: Call) -> ConvolutionProblem | None:
    """Return the problem of a call.

    Returns None for volumes, if sizes other than the number of images are symbolic, if x, w or y
    is not contiguous, if there are several results or groups, or if the call uses split-K.
    """
    named: dict[str, Any] = CALLS.of(call).named(call)
    x, w, y, a = named["x"], named["w"], named["y"][0], call.attributes
    if is_of_volumes(call):
        return None
    sizes = (*x.dims[1:], *y.dims[1:], *w.dims)
    if not all(isinstance(n, int) for n in sizes) or len(named["y"]) > 1 or a["groups"] > 1:
        return None
    if any(v.strides != dense_strides(v.dims) for v in (x, w, y)):
        return None
    own = variants_of(call)[0][0].template in (WINDOWS, FEW_PIXELS)
    if named["partial"] is not None and not own:
        return None
    ways = [_kind(v, y) for v in named["inputs"]]
    if "" in ways:
        return None
    static = isinstance(x.dims[0], int)
    return ConvolutionProblem(
        x.dims[1:], y.dims[1:], w.dims[1:3], call.dtype, tuple(a["strides"]),
        tuple(a["dilations"]), tuple(a["pads"]), named["bias"] is not None, call.chain,
        tuple(ways), static,
    )  # fmt: skip


def _kind(view: View, y: View) -> str:
    if view.strides == y.strides:
        return "full"
    return "row" if view.strides == (0, 0, 0, 1) else "scalar" if not any(view.strides) else ""


def conv_from_json(data: Mapping[str, Any], epilogue: Chain | None) -> ConvolutionProblem:
    """Parse a problem's key.  Raises KeyError, TypeError, ValueError."""

    def numbers(name: str) -> Any:
        return tuple(int(n) for n in data[name])

    reads = tuple(str(kind) for kind in data["reads"])
    if not {*reads} <= {*_KINDS}:
        raise ValueError(f"epilogue operands cannot be broadcast as {reads}")
    return ConvolutionProblem(
        numbers("image"), numbers("result"), numbers("window"), str(data["dtype"]),
        numbers("strides"), numbers("dilations"), numbers("pads"), bool(data["bias"]), epilogue,
        reads, bool(data["static"]),
    )  # fmt: skip
