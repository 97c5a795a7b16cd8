"""Constant folding of computations that do not depend on the inputs.

ONNX Runtime computes the results, which makes them bit-identical to those it would compute later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper, numpy_helper

from tracea_graph.ir import RANDOM_OPS, DType, TensorSpec, Weight
from tracea_graph.onnx_io.graph_editor import EditorNode, GraphEditor
from tracea_graph.onnx_io.model_validation import plain_session
from tracea_graph.onnx_io.node_conversion import has_subgraph
from tracea_graph.onnx_io.tensor_data import in_memory_weight, numpy_dtype

__all__ = ["fold_constants"]

LIMIT = 1 << 25
"""Maximum bytes of an operand or result of folding (scaled filters, for example)."""

TOTAL = 1 << 28
"""Maximum bytes of all results together: they are held in memory, unlike weights in their file."""

NEVER = RANDOM_OPS | {"Constant", "DynamicQuantizeLinear"}
"""Operators that are random or have nothing to fold."""
CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Gather"})
"""Operators that kernels and ONNX Runtime can compute on the integers that a conversion reads."""
CONVERTED = 1 << 16
"""Maximum bytes of a constant whose conversions are folded."""

OVERHEAD = 24
"""Bytes of an initializer besides its name and data."""

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def fold_constants(editor: GraphEditor) -> int:
    """Replace computations on constants by their results, as far as the file's growth allows."""
    candidates = _candidates(editor)
    folded = 0
    for cost, group in sorted(
        ((_cost(group, editor), group) for group in _groups(candidates)), key=lambda t: t[0]
    ):
        if cost > editor.growth:
            break
        frontier = _frontier(group, editor)
        size = sum(_bytes(editor.facts.specs[name]) for name in frontier)
        fits = editor.held + size <= TOTAL
        results = _evaluate(group, frontier, editor) if fits else None
        if results is None:
            continue
        editor.held += size
        editor.growth -= max(cost, 0)
        for name, array in results.items():
            editor.weights[name] = in_memory_weight(name, array)
            editor.facts.weight(editor.weights[name])
        for call in group:
            editor.remove(call)
        folded += len(group)
    return folded


def _candidates(editor: GraphEditor) -> list[EditorNode]:
    found: list[EditorNode] = []
    constant_values: set[str] = set()
    for call in editor.calls():
        outputs = [v for v in call.proto.output if v]
        known = len(outputs) == 1 and editor.facts.numbers(outputs[0]) is not None
        if not (known or _computable(call, editor, constant_values)):
            continue
        if editor.kept.isdisjoint(outputs) and all(
            _fits(editor.facts.specs.get(v)) for v in outputs
        ):
            found.append(call)
            constant_values |= set(outputs)
    return found


def _computable(call: EditorNode, editor: GraphEditor, constants: set[str]) -> bool:
    proto = call.proto
    if proto.domain not in ("", "ai.onnx") or proto.op_type in NEVER or has_subgraph(proto):
        return False
    if proto.op_type in CONVERSIONS and not _converts_beside_products(call, editor):
        return False
    for name in proto.input:
        weight = editor.weights.get(name)
        if name and name not in constants and (weight is None or weight.nbytes > LIMIT):
            return False
    return True


def _converts_beside_products(call: EditorNode, editor: GraphEditor) -> bool:
    """Return whether a conversion makes a small constant that no product reads as integers."""
    spec = editor.facts.specs.get(call.proto.output[0])
    if spec is None or spec.shape is None or not _fits(spec) or _bytes(spec) > CONVERTED:
        return False
    return all(
        _converts_beside_products(reader, editor)
        if reader.proto.op_type in CONVERSIONS
        else reader.proto.op_type not in PRODUCTS
        for reader in editor.readers(call)
    )


def _fits(spec: TensorSpec | None) -> bool:
    if spec is None or spec.dtype in (None, DType.STR) or spec.shape is None:
        return False
    if not all(isinstance(d, int) for d in spec.shape):
        return False
    assert spec.dtype is not None
    count = math.prod(d for d in spec.shape if isinstance(d, int))
    return count * max(spec.dtype.size, 1) <= LIMIT


def _groups(candidates: Sequence[EditorNode]) -> list[list[EditorNode]]:
    """Candidates connected by values they pass to each other."""
    graph = nx.Graph()
    writer = {v: c.index for c in candidates for v in c.proto.output if v}
    for call in candidates:
        graph.add_node(call.index)
        graph.add_edges_from((call.index, writer[v]) for v in call.proto.input if v in writer)
    group = {i: n for n, part in enumerate(nx.connected_components(graph)) for i in part}
    groups: dict[int, list[EditorNode]] = {}
    for call in candidates:
        groups.setdefault(group[call.index], []).append(call)
    return list(groups.values())


def _frontier(group: Sequence[EditorNode], editor: GraphEditor) -> list[str]:
    """Values of a group that are read outside it."""
    inside = {call.index for call in group}
    return [
        tensor.name
        for call in group
        for tensor in call.handle.outputs
        if tensor.name and any(int(reader.name) not in inside for reader in tensor.outputs)
    ]


def _cost(group: Sequence[EditorNode], editor: GraphEditor) -> float:
    """Bytes by which the file grows."""
    inside = {call.index for call in group}
    grown = 0.0
    for name in _frontier(group, editor):
        grown += len(name) + OVERHEAD + _bytes(editor.facts.specs[name])
    for name in {v for call in group for v in call.proto.input if v in editor.weights}:
        readers = {int(r.name) for r in editor.tensors[name].outputs}
        if readers <= inside:
            grown -= len(name) + OVERHEAD + editor.weights[name].nbytes
    return grown - sum(int(call.proto.ByteSize()) for call in group)


def _bytes(spec: TensorSpec) -> float:
    assert spec.shape is not None and spec.dtype is not None
    count = math.prod(d for d in spec.shape if isinstance(d, int))
    return float(count * spec.dtype.size)


def _evaluate(
    group: Sequence[EditorNode], wanted: Sequence[str], editor: GraphEditor
) -> Arrays | None:
    """Compute the wanted values; None if ONNX Runtime cannot."""
    found: Arrays = {}
    for call in group:
        for name in call.proto.output:
            numbers, dtype = editor.facts.numbers(name), editor.facts.dtype(name)
            value = editor.facts.value(name)
            if numbers is not None and dtype is not None and value is not None:
                found[name] = np.array(numbers, numpy_dtype(dtype)).reshape(value.shape)
    missing = [name for name in wanted if name not in found]
    if missing:
        nodes = [c.proto for c in group if not any(v in found for v in c.proto.output)]
        computed = _run(nodes, missing, found, editor)
        if computed is None:
            return None
        found |= computed
    return {name: found[name] for name in wanted}


def _run(
    nodes: Sequence[NodeProto], wanted: Sequence[str], found: Arrays, editor: GraphEditor
) -> Arrays | None:
    operands = _operands(nodes, found, editor.weights)
    outputs = [helper.make_value_info(v, editor.facts.type_of(v)) for v in wanted]
    graph = helper.make_graph(nodes, "constants", [], outputs, operands)
    imports = [helper.make_opsetid(d, v) for d, v in editor.opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    try:
        session = plain_session(model.SerializeToString())
        values = session.run_with_ort_values(list(wanted), {})
        return _unpack(wanted, values, editor)  # ONNX Runtime's binding has no arrays for bf16
    # the binding raises several unrelated types; leaving the graph unfolded is correct
    except Exception:
        return None


def _unpack(wanted: Sequence[str], values: Sequence[Any], editor: GraphEditor) -> Arrays | None:
    """Results as arrays; None if a type or shape differs from the inferred one."""
    out: Arrays = {}
    for name, value in zip(wanted, values, strict=True):
        spec = editor.facts.specs[name]
        if not value.is_tensor() or tuple(value.shape()) != spec.shape or spec.dtype is None:
            return None
        if value.element_type() != spec.dtype.onnx or spec.dtype.size < 1:
            return None
        out[name] = np.asarray(value.numpy()).view(numpy_dtype(spec.dtype))
    return out


def _operands(nodes: Iterable[NodeProto], found: Arrays, weights: dict[str, Weight]) -> list[Any]:
    inside = {v for node in nodes for v in node.output}
    names = {v for node in nodes for v in node.input if v and v not in inside}
    return [
        numpy_helper.from_array(found[n] if n in found else np.asarray(weights[n].array()), n)
        for n in sorted(names)
    ]
