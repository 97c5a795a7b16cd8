"""Tensor-core matmul with an epilogue: fp16 and bf16, and float32 as TF32 or 3xTF32.

3xTF32 splits each number into a sum of two tf32 numbers and omits the product of the low terms.
The relative error is 2^-21.  Infinities become NaN; ``fma`` kernels handle infinities.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tracea_graph.ir import DType, Extent, combine, product
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.launch import (
    Argument,
    Launch,
    constant_buffer_flag,
    divisor,
    f32,
    i32,
    pointer,
)
from tracea_graph.kernels.gpu.semantic.bank_conflicts import Access, matrix_load, prove_free
from tracea_graph.kernels.gpu.semantic.epilogue_strips import EpilogueStrip
from tracea_graph.kernels.gpu.semantic.fragment_layouts import ATOMS, MatrixLoad
from tracea_graph.kernels.gpu.semantic.multistage_pipeline import BarrierMode, Ring, prove
from tracea_graph.kernels.gpu.semantic.shared_memory_swizzle import Layout, SwizzleMode
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import ROW, Chain

__all__ = ["launch", "name", "parameters", "shared"]

TYPES = {"f16": DType.F16, "bf16": DType.BF16, "f32": DType.F32, "tf32": DType.F32,
         "tf32x3": DType.F32}  # fmt: skip
"""Element type of both operands, and of a result without a chain, by the call's dtype."""


@dataclass(frozen=True)
class EpilogueTensor:
    """A tensor of the epilogue: an operand of the chain, or a result.

    A ``second`` one is not in memory: it has the sums of a second matrix.  A ``row`` is equal in
    all rows.
    """

    name: str
    element: str
    operand: bool
    wide: bool
    start: str
    second: bool = False
    row: bool = False

    @property
    def qualified(self) -> str:
        return f"{'const ' if self.operand else ''}{self.element}*"


@dataclass(frozen=True)
class Tile:
    """Shared-memory layout of a variant's tile; sizes are in elements except for ``*_bytes``."""

    m: int
    n: int
    k_bytes: int
    wm: int
    wn: int
    size: int
    layout: str
    stages: int

    @property
    def k(self) -> int:
        return self.k_bytes // self.size

    @property
    def a(self) -> Layout:
        return _layout(self.k_bytes)

    @property
    def b(self) -> Layout:
        """Layout of w as stored; float32 rows are padded so that four start in different banks."""
        if self.layout == "nk":
            return _layout(self.k_bytes)
        wide = self.n * self.size
        return _layout(wide) if self.size == 2 else Layout(wide + 32)

    @property
    def a_bytes(self) -> int:
        return self.m * self.a.pitch

    @property
    def stage_bytes(self) -> int:
        return self.a_bytes + (self.n if self.layout == "nk" else self.k) * self.b.pitch

    @property
    def ring(self) -> Ring:
        return Ring(self.stages, BarrierMode.GROUPS)

    @property
    def strip(self) -> EpilogueStrip:
        return EpilogueStrip(self.wn)

    @property
    def shared(self) -> int:
        warps = self.m // self.wm * (self.n // self.wn)
        return max(self.stages * self.stage_bytes, warps * self.strip.words * 4)

    def loads(self) -> list[Access]:
        """Return the accesses that read fragments from the pipeline's stages."""
        per, found = 16 // self.size, []
        a = MatrixLoad(((0, 0), (8, 0), (0, per), (8, per)))
        nk = MatrixLoad(((0, 0), (0, per), (8, 0), (8, per)))
        kn = MatrixLoad(((0, 0), (8, 0), (0, 8), (8, 8)), transposed=True)
        for k in range(0, self.k, 2 * per):
            found += [matrix_load("a", a, self.a, r, k, self.size) for r in range(0, self.m, 16)]
            for n in range(0, self.n, 16):
                if self.layout == "nk":
                    found.append(matrix_load("b", nk, self.b, n, k, self.size))
                elif self.size == 2:
                    found.append(matrix_load("b", kn, self.b, k, n, self.size))
                else:
                    places = [ATOMS["m16n8k8.tf32"].b.at(lane, 0) for lane in range(32)]
                    at = tuple(self.b.offset(k + r, (n + c) * 4) for r, c in places)
                    found.append(Access("b", 4, at))
        return found


def _layout(pitch: int) -> Layout:
    modes = {32: SwizzleMode.XOR2, 64: SwizzleMode.XOR4}
    return Layout(pitch, modes.get(pitch, SwizzleMode.XOR8))


@cache
def _proved(tile: Tile, run: int) -> Tile:
    """Prove a tile free of bank conflicts and its pipeline safe; raises GraphError otherwise."""
    prove_free(tile.loads())
    prove_free(tile.strip.accesses(run))
    prove(tile.ring)
    return tile


def shared_layout(call: Call, variant: Variant) -> Tile:
    """Return the shared-memory layout of a call's operands."""
    p, size = variant.params, int(TYPES[call.dtype].size)
    layout = str(call.attributes["layout"])
    return Tile(p["m"], p["n"], p["k_bytes"], p["wm"], p["wn"], size, layout, p["stages"])


def views_by_operand(call: Call) -> dict[str, Any]:
    """Return the views of a call by the name of their operand."""
    return CALLS.of(call).named(call)


def without_operands(call: Call, *names: str) -> Call:
    """Return a matmul without some of its optional operands."""
    places, listed = CALLS.of(call).slices(call), list(call.views)
    for one in names:
        if one in places:
            listed[places[one].start] = None
    return replace(call, views=tuple(listed))


def without_parts(call: Call) -> Call:
    """Return a matmul without the buffers of split-K: partial sums and arrival counters."""
    return without_operands(call, "partial", "arrivals")


def with_sums(call: Call, sums: View) -> Call:
    """Return a matmul that also writes to ``sums`` the sums of the rows of its first result."""
    listed = list(call.views)
    listed[CALLS.of(call).slices(call)["y_sums"].start] = sums
    return replace(call, views=tuple(listed))


def without_sums(call: Call) -> Call:
    """Return a matmul that neither reads nor writes sums of rows (``x_sums``, ``y_sums``)."""
    return without_operands(call, "x_sums", "y_sums")


def chain_of(call: Call) -> Chain:
    """Return a call's epilogue, or one that stores the product unchanged."""
    own = TYPES[call.dtype]
    stores = () if own is DType.F32 else (own,)
    return call.chain or Chain(("full",), (), (0,), (), stores)


def vector_length(call: Call) -> int:
    """Return the number of columns that a thread's epilogue processes at once."""
    chain = chain_of(call)
    return chain_parameters.vector_length(*chain.operand_types[1:], *chain.result_types)


def batch_of(call: Call) -> tuple[Extent, ...]:
    """Return the leading axes of the result."""
    dims: tuple[Extent, ...] = views_by_operand(call)["y"][0].dims[:-2]
    return dims


def strides_of(view: View, batch: int) -> tuple[Extent, ...]:
    """Return a view's strides after adding missing leading axes, for ``batch`` of them.

    The stride is 0 for an added axis, and for a leading axis of size 1.
    """
    missing = batch + 2 - len(view.dims)
    leading = [0 if d == 1 else s for d, s in zip(view.dims[:-2], view.strides[:-2], strict=True)]
    return (*(0,) * missing, *leading, *view.strides[-2:])


def epilogue_tensors(call: Call) -> tuple[EpilogueTensor, ...]:
    """Return the tensors of the epilogue, in the order of their parameters."""
    chain, batch = chain_of(call), len(batch_of(call))
    listed = [
        (f"x{x.index}", x.element, True, x.wide) for x in chain_parameters.operands(chain)[1:]
    ]
    listed += [(f"y{y.index}", y.element, False, True) for y in chain_parameters.results(chain)]
    rows = {f"x{x.index}" for x in chain_parameters.operands(chain)[1:] if x.kind == ROW}
    return tuple(
        EpilogueTensor(*one, batch_offset(one[0], batch), row=one[0] in rows) for one in listed
    )


def batch_offset(tensor: str, batch: int) -> str:
    """Return the C expression of the offset of a tensor's matrix in the batch."""
    return " + ".join(f"(i64)i{axis} * {tensor}_b{axis}" for axis in range(batch)) or "0"


def name(call: Call) -> str:
    words = ["gemm", str(call.attributes["layout"])]
    words += [norm_of(call)] * (norm_of(call) != "none")
    words += ["bias"] * (views_by_operand(call)["bias"] is not None)
    words += [f"{call.chain.key:016x}"] if call.chain else []
    words += [f"batch{len(batch_of(call))}"] if batch_of(call) else []
    words += ["cut"] * (views_by_operand(call)["partial"] is not None)
    return "_".join(words)


def norm_of(call: Call) -> str:
    """Return the kind of norm that a matmul applies to the rows of x first, or "none"."""
    return str(call.attributes.get("norm", "none"))


def epilogue(call: Call) -> dict[str, Any]:
    """Return the parameters of ``templates/epilogue.h``."""
    return {
        **chain_parameters.chain_template_parameters(chain_of(call)),
        "tensors": epilogue_tensors(call),
        "strided": True,
        "bias": views_by_operand(call)["bias"] is not None,
        "norm": norm_of(call),
        "batch": len(batch_of(call)),
        "start_x": batch_offset("x", len(batch_of(call))),
        "start_w": batch_offset("w", len(batch_of(call))),
        "run": vector_length(call),
        "cut": views_by_operand(call)["partial"] is not None,
        "layout": call.attributes["layout"],
        "element": chain_parameters.ELEMENTS[TYPES[call.dtype]],
    }


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    tile = _proved(shared_layout(call, variant), vector_length(call))
    split = call.dtype == "tf32x3"
    return {
        **epilogue(call),
        "k": tile.k,
        "a": tile.a,
        "b": tile.b,
        "a_bytes": tile.a_bytes,
        "stage_bytes": tile.stage_bytes,
        "ring": tile.ring,
        "strip": tile.strip,
        "size": tile.size,
        "split": split,
        "moments_at": tile.shared,
        "kind": "tf32" if split else call.dtype,
        "rounded": call.dtype == "tf32",
        "fragment": ATOMS["m16n8k16.f16"].d,
        "warps_m": tile.m // tile.wm,
        "warps_n": tile.n // tile.wn,
    }


def shared(call: Call, variant: Variant) -> int:
    moments = 8 * variant.params["m"] * (norm_of(call) != "none")
    return shared_layout(call, variant).shared + moments


def norm_arguments(call: Call) -> list[Argument]:
    """Return the arguments for normalising the rows of x; none if the matmul has no norm."""
    named, depth = views_by_operand(call), views_by_operand(call)["x"].dims[-1]
    if norm_of(call) == "none":
        return []
    sums = [pointer(named["column_sums"], DType.F32)] * (norm_of(call) == "layer")
    told = [pointer(named[one], DType.F32) for one in ("mean", "inverse")]
    return [*sums, *told, f32(1.0 / int(depth)), f32(float(call.attributes["epsilon"]))]


def arguments(call: Call, m: int, n: int) -> tuple[Extent, list[Argument]]:
    """Return the number of m × n tiles, and the arguments that all matmul kernels share."""
    named, chain = views_by_operand(call), chain_of(call)
    batch = batch_of(call)
    x, w, own = named["x"], named["w"], TYPES[call.dtype]
    rows, depth = x.dims[-2:]
    cols = named["y"][0].dims[-1]
    xs, ws = strides_of(x, len(batch)), strides_of(w, len(batch))
    made = [pointer(x, own), pointer(w, own)]
    for pair in zip(xs[:-2], ws[:-2], strict=True):
        made += map(i32, pair)
    made += map(i32, (*xs[-2:], *ws[-2:]))
    if named["bias"] is not None:
        made += [pointer(named["bias"], DType.F32), i32(named["bias"].strides[-1])]
    types = (*chain.operand_types[1:], *chain.result_types)
    for view, dtype in zip((*named["inputs"], *named["y"]), types, strict=True):
        made += [pointer(view, dtype), *map(i32, strides_of(view, len(batch)))]
    made += norm_arguments(call)
    made += [divisor(dim) for dim in batch[1:]]
    tiles = combine("ceildiv", rows, m), combine("ceildiv", cols, n)
    made += [i32(rows), i32(cols), i32(depth), *map(divisor, tiles)]
    blocks = product((*batch, *tiles))
    if named["partial"] is not None:
        parts = named["partial"].dims[1]
        made += [pointer(named["partial"], DType.F32), pointer(named["arrivals"], DType.I32)]
        made.append(divisor(parts))
        blocks = combine("mul", blocks, parts)
    return blocks, made


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    blocks, made = arguments(call, variant.params["m"], variant.params["n"])
    made.append(constant_buffer_flag(views_by_operand(call)["w"]))
    taken = shared(call, variant)
    return Launch(symbol, (blocks, 1, 1), variant.threads, taken, tuple(made))
