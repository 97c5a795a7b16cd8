"""Norms, softmax and reductions of rows; a chain may compute the rows and store a second result.

Norms may store their result in 8 bits too, or only so.

Sums are in float32: each thread adds up its elements, then the threads of a row add up theirs.
"""

from __future__ import annotations

from typing import Any

from tracea_graph.ir import DType, combine
from tracea_graph.kernels.gpu import chain_parameters
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.launch import Argument, Launch, f32, i32, pointer
from tracea_graph.kernels.gpu.variants import Variant
from tracea_graph.kernels.program import Call, View
from tracea_graph.ops.chain import Chain

__all__ = ["launch", "name", "parameters", "shared"]

_TERMS = {
    "sum": ("add", "v"), "absolutes": ("add", "abs(v)"), "squares": ("add", "v * v"),
    "max": ("largest", "v"), "min": ("smallest", "v"), "product": ("multiply", "v"),
}  # fmt: skip
_SCRATCH = 128
"""Bytes of shared memory: one number for each warp of a row."""


def _type(call: Call) -> DType:
    return DType.from_short(call.dtype)


def _chain(call: Call) -> Chain:
    """Return the call's chain, or one that reads x unchanged."""
    return call.chain or Chain(("full",), (), (0,), (_type(call),))


def _named(call: Call) -> dict[str, Any]:
    return CALLS.of(call).named(call)


def _weights(call: Call) -> list[str]:
    return [name for name in ("gamma", "beta") if _named(call).get(name) is not None]


def _also(call: Call) -> DType | None:
    """Return the type of the chain's second result if the call stores it, else None."""
    types = _chain(call).result_types
    return types[1] if _named(call).get("also") is not None else None


def _rounded(call: Call) -> DType | None:
    """Return the 8-bit type in which the call stores its result, or None."""
    if _named(call).get("rounded") is None:
        return None
    return DType.from_short(str(call.attributes["rounded_type"]))


def _by_rows(call: Call) -> bool:
    """Whether rows of 8-bit floats have a scale each."""
    return _named(call).get("scales") is not None


def name(call: Call) -> str:
    words = [call.op, str(call.attributes.get("kind", ""))]
    words += [word for word in ("log", "stepped") if call.attributes.get(word)]
    words += ["mean"] * bool(call.attributes.get("mean"))
    words += _weights(call)
    if call.chain is not None:
        words += [f"{call.chain.key:016x}"]
    words += ["also"] * (_also(call) is not None)
    if (rounded := _rounded(call)) is not None:
        words += ["rounded" if rounded is DType.F8E4M3FN else rounded.short]
    words += ["scaled"] * _by_rows(call)
    words += ["alone"] * (_named(call)["y"] is None)
    return "_".join(word for word in words if word)


def parameters(call: Call, variant: Variant) -> dict[str, Any]:
    chain, also, own, rounded = _chain(call), _also(call), _type(call), _rounded(call)
    run = chain_parameters.vector_length(*chain.operand_types, own)
    weights = _weights(call)
    reducer, term = _TERMS.get(str(call.attributes.get("kind")), ("", ""))
    made = chain_parameters.chain_template_parameters(chain)
    if also is None:
        made["results"] = made["results"][:1]
    return {
        **made,
        "op": call.op,
        "kind": call.attributes.get("kind"),
        "log": call.attributes.get("log"),
        "stepped": call.attributes.get("stepped"),
        "mean": call.attributes.get("mean"),
        "reducer": reducer,
        "term": term,
        "weights": weights,
        "scaled": " * w_gamma[j]" * ("gamma" in weights) + " + w_beta[j]" * ("beta" in weights),
        "y_element": "" if _named(call)["y"] is None else chain_parameters.ELEMENTS[own],
        "rounded": rounded and chain_parameters.ELEMENTS[rounded],
        "stepped_rounded": rounded in (DType.U8, DType.I8),
        "by_rows": _by_rows(call),
        "also": also and chain_parameters.ELEMENTS[also],
        "run": run,
        "vectors": variant.params["held"] // (variant.params["team"] * run),
    }


def shared(call: Call, variant: Variant) -> int:
    return _SCRATCH


def launch(call: Call, variant: Variant, symbol: str) -> Launch:
    named, chain, also, rounded = _named(call), _chain(call), _also(call), _rounded(call)
    xs: tuple[View, ...] = named["x"]
    rows, cols = xs[0].dims
    arguments: list[Argument] = []
    for view, dtype in zip(xs, chain.operand_types, strict=True):
        arguments += [pointer(view, dtype), *map(i32, view.strides)]
    for weight in _weights(call):
        arguments += [pointer(named[weight], DType.F32), i32(named[weight].strides[-1])]
    y: View | None = named["y"]
    if y is not None:
        strides = y.strides if len(y.dims) == 2 else (*y.strides, 0)
        arguments += [pointer(y, _type(call)), *map(i32, strides)]
    if rounded is not None:
        arguments += [pointer(named["rounded"], rounded), *map(i32, named["rounded"].strides)]
    if _by_rows(call):
        arguments.append(pointer(named["scales"], DType.F32))
    if also is not None:
        arguments += [pointer(named["also"], also), *map(i32, named["also"].strides)]
    arguments += [i32(rows), i32(cols)]
    if call.op == "norm":
        arguments.append(f32(float(call.attributes["epsilon"])))
    numbers = ["step", "low", "high"] if call.attributes.get("stepped") else []
    if rounded is not None:
        floats = rounded is DType.F8E4M3FN
        numbers += (
            ["step", "low"]
            if _by_rows(call)
            else ["factor"]
            if floats
            else ["step", "zero", "low", "high"]
        )
    arguments += [f32(float(call.attributes[name])) for name in numbers]
    blocks = combine("ceildiv", rows, variant.params["rows"])
    return Launch(symbol, (blocks, 1, 1), variant.threads, _SCRATCH, tuple(arguments))
