"""Choose sizes for the symbols of a model, to time and to verify with.

A symbol's role follows from its name, or else from its position in an input:

    role      default   prime   recognised by
    batch           1       3   "batch"; the first dim of an input
    sequence      128      13   "seq", "len", "token", "time", "frames"; dim 1 of ids and [B, S, H]
    past          128       7   "past", "cache"
    samples       512     521   as sequence, in a 2-D float input: a frame of a waveform
    recording   16000    4801   "sample", "audio", "wave", "pcm": a waveform by its name
    image         224      97   "height", "width"; dims of 4-D inputs with 1, 3 or 4 channels
    other          16       5

Symbols of one role get one size, because a model with unnamed symbols may require them to be
equal. ``seq#2`` is called ``seq`` in the model but may have another size; a size given for ``seq``
applies to both.  A symbol such as ``past_sequence_length + 1`` is the sum that its name states;
``total…`` is past + sequence, and so is the length of a mask that has a symbol of its own beside a
cache.  A last dim that is multiplied with a weight takes the weight's
size, and no default exceeds what the model's constants allow (``symbol_size_limits``), such as the
rows of a position table.  ONNX Runtime's operators on KV caches of several items take one new row
of each: in their presence, prime bindings use a sequence of 1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from tracea_graph.check.symbol_size_limits import SizeLimit, clip_sizes, known_size_limits
from tracea_graph.errors import UsageError, did_you_mean
from tracea_graph.ir import SYMBOL_NUMBER_MARK, DType, TensorSpec, symbols_of
from tracea_graph.ttg.region_graph import Region, TileGraph

__all__ = [
    "Binding",
    "binding_from_dims",
    "choose_bindings",
    "fallback_bindings",
    "inputs_to_feed",
]

_DEFAULT: Mapping[str, int] = MappingProxyType(
    {
        "batch": 1,
        "sequence": 128,
        "past": 128,
        "samples": 512,
        "recording": 16_000,
        "image": 224,
        "other": 16,
    }
)
_PRIME: Mapping[str, int] = MappingProxyType(
    {
        "batch": 3,
        "sequence": 13,
        "past": 7,
        "samples": 521,
        "recording": 4801,
        "image": 97,
        "other": 5,
    }
)
_ONE: Mapping[str, int] = MappingProxyType(dict.fromkeys(_DEFAULT, 1))

_GUESSES: Mapping[str, Sequence[int]] = MappingProxyType(
    {
        "sequence": (1, 64, 16, 256, 512),
        "samples": (576, 256, 1024, 16_000, 480),
        "recording": (512, 48_000, 1536, 160_000),
        "image": (256, 320, 640, 64, 48, 32, 112),
        "other": (256, 64, 80, 512, 576, 1024, 3, 4, 1),
    }
)
"""Sizes to try, by role, if a model rejects the default ones."""
_MOST_GUESSES = 64

_WORDS = (
    ("total", "total"),
    ("past", "past|cache|history"),
    ("batch", "batch|^b$|^n$"),
    ("image", "height|width|^h$|^w$"),
    ("sequence", "seq|len|token|time|frames|^s$|^t$"),
)
_RECORDING = "sample|audio|wave|pcm"
"""Names of the last axis of a waveform."""
_ROW_BY_ROW = ("GroupQueryAttention", "DecoderMaskedMultiHeadAttention")
_SETTLED = 4
"""Maximum number of rounds in which size limits and sums of clipped sizes are reconciled."""
_KEEPS = frozenset(
    ("Cast", "Identity", "Relu", "Sigmoid", "Tanh", "Gelu", "Erf", "Neg", "Abs", "Sqrt", "Clip")
)


@dataclass(frozen=True)
class Binding:
    """A size for every symbol; ``label`` is for display, ``notes`` say why sizes were reduced.

    If ``padded``, the mask inputs hide the last third of every other batch entry.
    """

    label: str
    symbols: Mapping[str, int]
    padded: bool = False
    notes: tuple[str, ...] = ()


def inputs_to_feed(graph: TileGraph, inputs: Sequence[str] | None) -> tuple[str, ...]:
    """Return the inputs that need a value: ``inputs`` if given, else all except weights."""
    return tuple(
        v for v in graph.inputs if (v not in graph.weights if inputs is None else v in inputs)
    )


def choose_bindings(
    graph: TileGraph,
    shapes: Sequence[Mapping[str, int]] = (),
    inputs: Sequence[str] | None = None,
) -> tuple[tuple[Binding, ...], tuple[Binding, ...]]:
    """Return the bindings to time and those to verify with.

    The bindings to time are each of ``shapes`` applied to the default sizes, or the default alone.
    Those to verify with are the timed ones, one with all symbols 1, and one of odd primes with
    padded masks; a model without symbols is verified at its only sizes, with and without padding.
    ``inputs`` are the inputs without a default.  Raises UsageError for a symbol the model does not
    have, and for a size that a constant excludes.
    """
    needed = inputs_to_feed(graph, inputs)
    roles = _roles(graph, needed)
    for name in (name for shape in shapes for name in shape):
        if name not in roles and name not in graph.sums:
            known = f"its symbols are: {', '.join(sorted(roles))}" if roles else "all are fixed"
            which = did_you_mean(name, roles) or f"; {known}"
            raise UsageError(f"the model has no dim {name!r}{which}")
    shapes = [{**{n: shape[_plain(n)] for n in roles if _plain(n) in shape}, **shape}
              for shape in shapes]  # fmt: skip
    summed = [{n: shape[n] for n in shape if n in graph.sums} for shape in shapes]
    shapes = [{n: size for n, size in shape.items() if n not in graph.sums} for shape in shapes]
    pinned = _pinned(graph, needed)
    bounds = known_size_limits(graph)
    timed = [
        _bound(roles, _DEFAULT, {**pinned, **shape}, bounds, frozenset(shape))
        for shape in shapes or ({},)
    ]
    for sums, binding in zip(summed, timed, strict=False):
        _check_sums(graph, sums, binding.symbols)
    for shape, binding in zip(shapes, timed, strict=False):
        _check_limits(shape, binding.symbols, bounds)
    if not roles:
        fixed = Binding("fixed", {})
        return (fixed,), (fixed, Binding("padded", {}, padded=True))
    small = _bound(roles, _ONE, pinned, bounds)
    prime = _bound(roles, _primes(graph), pinned, bounds)
    padded = Binding(f"{prime.label}, padded", prime.symbols, True, prime.notes)
    plain = {b.label: b for b in (*timed, small)}
    return tuple({b.label: b for b in timed}.values()), (*plain.values(), padded)


def fallback_bindings(graph: TileGraph, inputs: Sequence[str] | None = None) -> Iterator[Binding]:
    """Yield bindings to try if a model rejects the default binding, likely sizes first."""
    needed = inputs_to_feed(graph, inputs)
    roles, bounds, pinned = _roles(graph, needed), known_size_limits(graph), _pinned(graph, needed)
    present = [role for role in _GUESSES if role in roles.values()]
    ladders = [[*enumerate((_DEFAULT[role], *_GUESSES[role]))] for role in present]
    steps = sorted(product(*ladders), key=lambda step: sum(rank for rank, _ in step))
    for step in steps[1:_MOST_GUESSES]:
        sizes = {role: size for role, (_, size) in zip(present, step, strict=True)}
        yield _bound(roles, {**_DEFAULT, **sizes}, pinned, bounds)


def _check_sums(graph: TileGraph, given: Mapping[str, int], sizes: Mapping[str, int]) -> None:
    """Raise UsageError if a size given for a symbol is not the sum that it stands for."""
    for name, size in given.items():
        terms = graph.sums[name].split(" + ")
        if size != sum(sizes[term] for term in terms):
            said = " and ".join(f"{term}={sizes[term]}" for term in terms)
            raise UsageError(f"{name}={size} does not fit the model: it is {said} together")


def _check_limits(
    given: Mapping[str, int], sizes: Mapping[str, int], bounds: Sequence[SizeLimit]
) -> None:
    """Raise UsageError if sizes break a limit that involves a given one."""
    for limit in bounds:
        names = {*symbols_of(limit.extent)}
        if names <= sizes.keys() and not names.isdisjoint(given) and not limit.holds(sizes):
            said = " and ".join(f"{_plain(name)}={sizes[name]}" for name in sorted(names))
            raise UsageError(f"{said} does not fit the model: {limit.why}")


def binding_from_dims(
    label: str, graph: TileGraph, dims: Mapping[str, tuple[int, ...]]
) -> Binding:
    """Return the symbol sizes implied by inputs with these ``dims``."""
    found: dict[str, int] = {}
    for value, sizes in dims.items():
        for symbol, size in zip(graph.spec(value).shape or (), sizes, strict=False):
            if isinstance(symbol, str):
                found.setdefault(symbol, size)
    return Binding(label, MappingProxyType(found))


def _primes(graph: TileGraph) -> Mapping[str, int]:
    steps = any(r.op.rpartition("::")[2] in _ROW_BY_ROW for r in graph.regions())
    return {**_PRIME, "sequence": 1} if steps else _PRIME


def _bound(
    roles: Mapping[str, str],
    sizes: Mapping[str, int],
    fixed: Mapping[str, int],
    bounds: Sequence[SizeLimit],
    given: frozenset[str] = frozenset(),
) -> Binding:
    """Choose sizes by role, then apply ``fixed`` sizes, sums, and ``bounds`` unless ``given``."""
    chosen = {name: fixed.get(name, sizes[role]) for name, role in roles.items() if role in sizes}
    notes: tuple[str, ...] = ()
    for _ in range(_SETTLED):
        found = _with_sums(roles, chosen, {**sizes, **_by_role(roles, chosen)}, fixed)
        clipped, more = clip_sizes(found, bounds, given | (roles.keys() - chosen.keys()))
        notes += more
        if clipped == found:
            break
        chosen = {name: clipped[name] for name in chosen}
    told = {n: size for n, size in found.items() if n == _plain(n) or size != found.get(_plain(n))}
    label = " ".join(f"{name}={size}" for name, size in told.items())
    return Binding(label, MappingProxyType(found), notes=notes)


def _by_role(roles: Mapping[str, str], chosen: Mapping[str, int]) -> dict[str, int]:
    return {roles[name]: size for name, size in chosen.items()}


def _with_sums(
    roles: Mapping[str, str],
    chosen: Mapping[str, int],
    sizes: Mapping[str, int],
    fixed: Mapping[str, int],
) -> dict[str, int]:
    """Return all sizes in the order of ``roles``; symbols that are sums follow their terms."""
    found = {name: chosen.get(name, fixed.get(name, 0)) for name in roles}
    for name in roles:
        if name not in chosen and name not in fixed:
            found[name] = _sum(name, roles, found, sizes)
    return found


def _sum(
    name: str, roles: Mapping[str, str], found: Mapping[str, int], sizes: Mapping[str, int]
) -> int:
    """Return the size of a symbol that is a sum: ``sum``, or ``total`` with or without past."""
    if roles[name] == "sum":
        return sum(_term(term.strip(), found, sizes) for term in name.split("+"))
    return sizes["sequence"] + (sizes["past"] if "past" in roles.values() else 0)


def _term(term: str, found: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    if term.isdigit():
        return int(term)
    return found.get(term) or sizes.get(_role_of_name(term), sizes["other"])


# ---- roles -----------------------------------------------------------------------------


def _roles(graph: TileGraph, inputs: Sequence[str]) -> dict[str, str]:
    """Return the role of every symbol in the inputs' shapes, in order of appearance."""
    roles: dict[str, str] = {}
    for value in inputs:
        spec = graph.spec(value)
        for axis, dim in enumerate(spec.shape or ()):
            if isinstance(dim, str) and roles.get(dim, "other") == "other":
                roles[dim] = _role(dim, spec, axis)
    return roles | _lengths_beside_masks(graph, inputs, roles)


def _lengths_beside_masks(
    graph: TileGraph, inputs: Sequence[str], roles: Mapping[str, str]
) -> dict[str, str]:
    """Return the roles of caches' lengths and of masks that cover a cache and the new tokens.

    Such a mask is ``[B, T]`` where no other input has a T, and others have a sequence; a cache is
    ``[B, heads, P, D]``.
    """
    specs = {value: graph.spec(value) for value in inputs}
    counts = Counter(dim for spec in specs.values() for dim in spec.shape or ())
    lengths = {dim for dim, role in roles.items() if role == "sequence"}
    masks = {
        str(spec.shape[1])
        for value, spec in specs.items()
        if spec.shape and spec.rank == 2 and counts[spec.shape[1]] == 1
        if "mask" in value.lower() and "encoder" not in value.lower()
    } & lengths
    caches = {
        str(spec.shape[2])
        for spec in specs.values()
        if spec.shape and spec.rank == 4 and roles.get(str(spec.shape[2])) in ("past", "other")
    }
    if not caches or not masks or masks == lengths:
        return {}
    return dict.fromkeys(caches, "past") | dict.fromkeys(masks, "total")


def _plain(symbol: str) -> str:
    """Return the model's name of a symbol that import split into numbered ones."""
    name, _, number = symbol.rpartition(SYMBOL_NUMBER_MARK)
    return name if name and number.isdecimal() else symbol


def _role(symbol: str, spec: TensorSpec, axis: int) -> str:
    if re.search(_RECORDING, symbol.lower()) and _is_waveform(spec, axis):
        return "recording"
    role = _role_of_name(_plain(symbol)) or _role_of_place(spec, axis)
    if role == "batch" and axis == 1 and spec.rank == 2:
        role = "sequence"  # ``[batch, N]``
    waveform = role == "sequence" and spec.rank == 2 and spec.dtype in (DType.F32, DType.F16)
    return "samples" if waveform else role


def _is_waveform(spec: TensorSpec, axis: int) -> bool:
    """Return True for the last axis of ``[N]``, ``[B, N]``, ``[B, 1, N]`` or ``[B, 2, N]``."""
    shape = spec.shape or ()
    ends = axis == len(shape) - 1 and (len(shape) < 3 or shape[1] in (1, 2))
    return ends and 0 < len(shape) < 4 and spec.dtype in (DType.F32, DType.F16)


def _role_of_name(symbol: str) -> str:
    if re.fullmatch(r"[^+]+(\+[^+]+)+", symbol):
        return "sum"
    found = (role for role, words in _WORDS if re.search(words, symbol.lower()))
    return next(found, "")


def _role_of_place(spec: TensorSpec, axis: int) -> str:
    rank, shape = spec.rank or 0, spec.shape or ()
    if axis == 0:
        return "batch"
    cache = any(_role_of_name(str(d)) in ("past", "sequence", "total", "sum") for d in shape)
    if rank == 4 and not cache and (shape[1] in (1, 3, 4) or shape[3] in (1, 3, 4)):
        return "image"
    ids = rank == 2 and spec.dtype in (DType.I32, DType.I64, DType.BOOL)
    return "sequence" if axis == 1 and (ids or rank == 3) else "other"


# ---- sizes implied by weights ----------------------------------------------------------


def _pinned(graph: TileGraph, inputs: Sequence[str]) -> dict[str, int]:
    """Return symbols whose size is fixed by a weight."""
    pinned: dict[str, int] = {}
    for name in inputs:
        shape, value = graph.spec(name).shape or (), name
        while (use := graph.only_use(value)) is not None and use.region.op in _KEEPS:
            value = use.region.results[0]
        for use in graph.uses(value) if shape else ():
            axis, size = _dictated(graph, use.region, use.operand, len(shape))
            if size is not None and isinstance(symbol := shape[axis], str):
                pinned.setdefault(symbol, size)
    return pinned


def _dictated(graph: TileGraph, region: Region, operand: int, rank: int) -> tuple[int, int | None]:
    """Return the axis of an operand whose size another operand's weight fixes, and that size."""
    other = [v for i, v in enumerate(region.operands) if i != operand and v]
    weight = graph.weight(other[0]) if other else None
    if weight is None or not weight.shape:
        return -1, None
    attrs, shape = region.node.attrs, weight.shape
    if region.op == "MatMul" and len(shape) >= 2:
        return (-1, shape[-2]) if operand == 0 else (-2 if rank > 1 else -1, shape[-1])
    if region.op == "Gemm" and operand == 0 and not attrs.get("transA"):
        return -1, shape[1] if attrs.get("transB") else shape[0]
    group = attrs.get("group", 1)
    if region.op == "Conv" and operand == 0 and rank > 1 and isinstance(group, int):
        return 1, shape[1] * group
    if region.op in ("LayerNormalization", "Add", "Sub", "Mul", "Div") and shape[-1] > 1:
        return -1, shape[-1]
    return -1, None
