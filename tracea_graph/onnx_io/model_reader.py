"""Import: an ONNX file becomes a :class:`Model`, with weights left on disk."""

from __future__ import annotations

import mmap
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, TensorProto

from tracea_graph.errors import ModelError, did_you_mean
from tracea_graph.ir import TensorSpec, Weight
from tracea_graph.onnx_io import external_data, initializer_guards, model_validation, tensor_data
from tracea_graph.onnx_io.appended_sequences import replace_appended_sequences
from tracea_graph.onnx_io.canonicalize import canonicalize
from tracea_graph.onnx_io.contrib_quantizers import standardize_quantizers
from tracea_graph.onnx_io.custom_op_inlining import inline_bodies
from tracea_graph.onnx_io.derived_weights import derive_weights
from tracea_graph.onnx_io.graph_editor import GraphEditor
from tracea_graph.onnx_io.half_to_float32 import widen_to_float32
from tracea_graph.onnx_io.hand_set_tiles_as_masks import patterns_of
from tracea_graph.onnx_io.imported_model import Model
from tracea_graph.onnx_io.local_function_inlining import inline_local_functions
from tracea_graph.onnx_io.loop_unrolling import Trips, known_trip_counts, unroll_loops
from tracea_graph.onnx_io.node_conversion import all_nodes
from tracea_graph.onnx_io.other_file_formats import describe_other_format
from tracea_graph.onnx_io.protobuf_wire import PayloadSpans, Span, WireError, parse_lazily
from tracea_graph.onnx_io.recurrent_loops import (
    RecurrentLoop,
    find_recurrent_loops,
    replace_recurrent_loops,
)
from tracea_graph.onnx_io.subgraph_flattening import (
    flatten_subgraphs,
    has_loops,
    iterating_loops_by_value,
)
from tracea_graph.onnx_io.tensor_data import FileSegment
from tracea_graph.ops.operator_iteration_spaces import space_of
from tracea_graph.ops.region_subgraph import subgraph_of
from tracea_graph.ops.values_masked_by_tiles import maskable_pattern
from tracea_graph.temporary_files import gc_paused, open_regular_file
from tracea_graph.ttg import TileGraph

__all__ = ["load", "read_unchecked"]

GROWTH = 0.02
"""Fraction of the file's size by which constant folding may grow it."""

"""Magic number of files in ONNX Runtime's own format, at byte offset 4."""

_OVERRIDABLE_SINCE = 4
"""IR version from which an initializer that is also an input may be fed."""


@dataclass(frozen=True)
class _Given:
    """The arguments of :func:`load`."""

    path: Path
    inline: bool
    kept: Container[str]
    freeze: bool
    guard: bool


class _FlatError(ModelError):
    """Raised for a model that is invalid with the nodes of its branches in the graph."""


@dataclass
class _Stored:
    """All constants of a file: initializers, large ``Constant`` nodes, names of sparse ones."""

    initializers: dict[str, Weight]
    constants: dict[str, Weight]
    sparse: list[str]
    outside: int


def load(
    path: Path,
    inline: bool = False,
    kept: Container[str] = (),
    *,
    freeze: bool = False,
    guard: bool = False,
    unrolled: bool = False,
) -> Model:
    """Read, check and canonicalize a model.

    * ``inline``: replace custom ops by their bodies, except op types in ``kept``;
    * ``freeze``: treat overridable initializers as plain constants, not as inputs;
    * ``guard``: treat those that a guard can compare as constants, but keep them as inputs of the
      result (see ``onnx_io.initializer_guards``);
    * ``unrolled``: unroll loops of a known, small number of iterations.

    Raises ModelError for a file that ONNX Runtime would not accept as a model.
    """
    with gc_paused():  # everything an import allocates stays alive
        given = _Given(path, inline, kept, freeze, guard)
        trips: Trips | None = {} if unrolled and not guard else None
        try:
            return _load(given, not guard, trips)
        except _FlatError:  # a branch that never runs may be invalid where it was moved
            return _load(given, False, trips)


def read_unchecked(
    path: Path,
) -> tuple[ModelProto, dict[str, int], dict[str, Weight], list[str]]:
    """Read a model whose shapes may contradict each other.

    Returns the model without large tensors, its operator sets, its constants by name, and the
    names of its initializers.  Raises ModelError for a file that is not a model.
    """
    skeleton, spans, _ = _read(path)
    model_validation.check_utf8_names(skeleton)
    opsets = _opsets(skeleton)
    external_data.embed_external_data(skeleton, path)
    stored = _stored(skeleton, spans, path)
    names = [*stored.initializers, *stored.sparse]
    return skeleton, opsets, {**stored.initializers, **stored.constants}, names


def _load(
    given: _Given,
    flat: bool,
    trips: Trips | None,
    opened: bool = False,
    cells: Mapping[str, RecurrentLoop] = MappingProxyType({}),
) -> Model:
    """Read a model, with the branches of If in the graph if ``flat``.

    Loops that are recurrent ``cells`` become operators, loops whose iterations turn out known are
    unrolled, and the bodies of others are in the graph too: these loops are ``opened``, except for
    ``trips``, which are unrolled.  With None, all loops stay.
    """
    path, guard, asked = given.path, given.guard, flat
    skeleton, spans, size = _read(path)
    if given.inline:
        initializer_guards.remove_guard(skeleton, spans)
        inline_bodies(skeleton, spans, given.kept)
    model_validation.check_utf8_names(skeleton)
    inline_local_functions(skeleton, spans)
    opsets = _opsets(skeleton)
    model_validation.check_opset(opsets, skeleton.ir_version)
    external_data.embed_external_data(skeleton, path)
    count = sum(1 for _ in all_nodes(skeleton.graph))
    standardize_quantizers(skeleton)
    replace_appended_sequences(skeleton)
    flat = _open_subgraphs(skeleton, flat, trips, opened, cells)
    widened = widen_to_float32(skeleton)
    stored = _stored(skeleton, spans, path)
    names = [*stored.initializers, *stored.sparse]
    fed = {v.name for v in skeleton.graph.input}
    constant = given.freeze or skeleton.ir_version < _OVERRIDABLE_SINCE
    overridable = set() if constant else fed & set(names)
    order, captures = model_validation.check_structure(skeleton.graph, names)
    defaults = {n: w for n, w in stored.initializers.items() if n in overridable}
    captured = {v for values in captures for v in values}
    guarded = (
        initializer_guards.guardable_initializers(skeleton, defaults, captured) if guard else {}
    )
    unknown = overridable - guarded.keys()
    shell = model_validation.without_data(skeleton, spans, list(_external(skeleton.graph)))
    try:
        known = model_validation.infer_all_types(shell, _first_outputs(skeleton.graph, order))
    except ModelError as error:
        if flat:
            raise _FlatError(str(error)) from error
        raise
    weights = {n: w for n, w in stored.initializers.items() if n not in unknown}
    total = size + stored.outside
    editor = GraphEditor(
        skeleton, order, captures, weights | stored.constants, opsets, known, GROWTH * total
    )
    if skeleton.training_info:
        editor.study()
    else:
        canonicalize(editor)
        if trips is not None and not opened:
            cells, found = _known_loops(skeleton.graph, editor)
            if found or has_loops(skeleton.graph):
                return _load(given, asked, found, True, cells)
    derive_weights(editor)
    inputs = tuple(v.name for v in skeleton.graph.input if v.name not in names)
    extra = [n for n in names if n in unknown or n in stored.sparse]
    graph = _tile_graph(editor, (*inputs, *dict.fromkeys(extra)))
    graph.source = path
    return Model(
        path, graph, opsets, skeleton.ir_version, inputs, frozenset(overridable), total,
        skeleton, defaults, guarded, (stored.initializers | stored.constants) if guarded else {},
        widened, count,
    )  # fmt: skip


def _known_loops(
    graph: GraphProto, editor: GraphEditor
) -> tuple[dict[str, RecurrentLoop], dict[str, int]]:
    """Return recurrent loops, and trip counts of others, by first outputs in the stored graph.

    Canonicalized loops differ in these if only operators that change nothing lie between a loop
    and a graph output: the canonicalized loop writes that output itself.
    """
    writers = {v: node for node in graph.node for v in node.output if v}

    def stored(name: str) -> str:
        node = writers.get(name)
        while node is not None and node.op_type not in ("Loop", "Scan"):
            node = writers.get(node.input[0]) if node.input else None
        return name if node is None else next(filter(None, node.output))

    cells = {stored(n): cell for n, cell in find_recurrent_loops(editor).items()}
    counts = {stored(n): count for n, count in known_trip_counts(editor).items()}
    return cells, {n: count for n, count in counts.items() if n not in cells}


def _open_subgraphs(
    skeleton: ModelProto,
    flat: bool,
    trips: Trips | None,
    opened: bool,
    cells: Mapping[str, RecurrentLoop],
) -> bool:
    """Replace, flatten and unroll as :func:`_load` says; return whether nodes were moved."""
    moved = flat and flatten_subgraphs(skeleton, {*(trips or ()), *cells} if opened else None)
    replace_recurrent_loops(skeleton, cells)
    if trips and unroll_loops(skeleton, trips) and flat:
        moved |= flatten_subgraphs(skeleton, ())  # loops inside those that were unrolled
    return moved


def _read(path: Path) -> tuple[ModelProto, PayloadSpans, int]:
    """Read the model without its large tensors, their locations, and the file's size in bytes."""
    try:
        with open_regular_file(path) as file:
            size = file.seek(0, 2)
            if not size:
                raise ModelError(f"{path.name} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                if other := describe_other_format(view, path):
                    raise ModelError(f"{path.name} {other}")
                data, spans = _parse_lazily(view)
    except IsADirectoryError:
        inside = sorted(one.name for one in path.glob("*.onnx"))
        which = f"give {path / inside[0]}" if len(inside) == 1 else "give an .onnx file"
        raise ModelError(f"{path} is a folder: {which}") from None
    except FileNotFoundError:
        near = did_you_mean(path.name, (one.name for one in path.parent.glob("*.onnx")))
        raise ModelError(f"{path} does not exist{near}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(f"{path} cannot be read: {reason}") from error
    except WireError as error:
        raise ModelError(f"{path.name} is not an ONNX model, or is truncated: {error}") from error
    try:
        skeleton = ModelProto.FromString(data)
    except DecodeError as error:
        raise ModelError(f"{path.name} is not an ONNX model, or is corrupt: {error}") from error
    lacks = "" if skeleton.HasField("graph") else "graph"
    if lacks := lacks or ("" if skeleton.ir_version else "IR version"):
        raise ModelError(f"{path.name} is not an ONNX model: it has no {lacks}")
    return skeleton, spans, size


def _parse_lazily(view: mmap.mmap) -> tuple[bytes, PayloadSpans]:
    with memoryview(view) as whole:
        return parse_lazily(whole)


def _opsets(skeleton: ModelProto) -> dict[str, int]:
    if not skeleton.opset_import:
        raise ModelError("the model names no operator set: export it again")
    return {("" if i.domain == "ai.onnx" else i.domain): i.version for i in skeleton.opset_import}


def _stored(skeleton: ModelProto, spans: PayloadSpans, path: Path) -> _Stored:
    graph = skeleton.graph
    stored = _Stored({}, {}, [s.values.name for s in graph.sparse_initializer], 0)
    for i, proto in enumerate(graph.initializer):
        weight = _weight(proto, spans.initializers.get(i), path, proto.name)
        stored.initializers[proto.name] = weight
        if external_data.is_external(proto):
            stored.outside += weight.nbytes
    for i, span in spans.constants.items():
        node = graph.node[i]
        tensor = node.attribute[0].t
        stored.constants[node.output[0]] = _weight(tensor, span, path, node.output[0])
    return stored


def _weight(proto: TensorProto, span: Span | None, path: Path, name: str) -> Weight:
    segment = None
    if external_data.is_external(proto):
        segment = external_data.locate_external(proto, path)
    elif span is not None:
        dtype, shape = tensor_data.dtype_of(proto), tuple(proto.dims)
        segment = FileSegment(path, span.offset, span.length, dtype, shape)
    return tensor_data.from_proto(proto, segment, name)


def _external(graph: GraphProto) -> Mapping[str, None]:
    return dict.fromkeys(t.name for t in graph.initializer if external_data.is_external(t))


def _first_outputs(graph: GraphProto, order: list[int]) -> list[str]:
    return [graph.node[i].output[0] if graph.node[i].output else "" for i in order]


def _tile_graph(editor: GraphEditor, inputs: tuple[str, ...]) -> TileGraph:
    specs: dict[str, TensorSpec] = dict(editor.facts.specs)
    nodes = editor.nodes()
    graph = TileGraph.of_nodes(
        nodes,
        inputs,
        [v.name for v in editor.skeleton.graph.output],
        editor.weights,
        specs,
        editor.opsets.get("", model_validation.newest_opset()),
        editor.skeleton.graph.name,
    )
    graph.model_of, graph.subgraph_of, graph.pattern_of = space_of, subgraph_of, maskable_pattern
    graph.patterns = patterns_of(editor.skeleton)
    graph.loose, graph.sums = editor.loose, editor.sums
    graph.iterations = iterating_loops_by_value(call.proto for call in editor.calls())
    return graph
