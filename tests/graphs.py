"""Tiny graphs for tests: built call by call, run by ONNX Runtime and by NumPy.

    net = Net()
    x = net.input("x", "batch", "seq", 32)
    y = net("Relu", net("MatMul", x, net.weight(32, 48)))
    graph = net.graph(y)                   # a TileGraph, shapes inferred
    expected = net.run(feeds)              # ONNX Runtime, its optimizations off
    actual = evaluate(graph, feeds)        # fused regions by their reference

A float given as an operand becomes a scalar constant, a NumPy array a weight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tracea_graph import load, passes
from tracea_graph.ir import DType, Node, TensorSpec, Weight
from tracea_graph.kernels.cpu import phases as cpu_phases
from tracea_graph.ops.function_body import Body
from tracea_graph.ops.operator_iteration_spaces import space_of
from tracea_graph.policy import CostModel, Machine
from tracea_graph.rewrite import DecisionTrace, Pass, Phase, SchedulerLimits, schedule_rewrites
from tracea_graph.ttg import Region, TileGraph

__all__ = [
    "Net", "assert_same", "evaluate", "every_phase", "loaded", "normal", "only", "ops",
    "optimized", "reasons", "relative_error", "run_body", "schedule_only", "session",
]  # fmt: skip

Array = npt.NDArray[Any]
Operand = str | float | int | Array
BINDINGS = {"batch": 2, "seq": 5}
LEGAL = SchedulerLimits(min_gain_us=-np.inf, check=True)
APART = SchedulerLimits(skip=frozenset({"cluster", "cluster-conv"}), min_gain_us=float("-inf"))
"""All rules, but what could be steps of one program stays apart."""
"""Tiny sizes gain little: whatever is legal is applied."""


def normal(*shape: int, seed: int = 0) -> Array:
    """Float32 numbers from N(0, 1)."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Net:
    """Collects operators; see the module's example."""

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.weights: dict[str, Array] = {}
        self.model = onnx.ModelProto()

    def input(self, name: str, *dims: int | str, dtype: DType = DType.F32) -> str:
        self.inputs[name] = helper.make_tensor_value_info(name, dtype.onnx, dims)
        return name

    def ids(self, name: str, *dims: int | str) -> str:
        """An int64 input."""
        return self.input(name, *dims, dtype=DType.I64)

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        """A weight of its own from N(0, 1)."""
        return self.const(normal(*shape, seed=len(self.weights) + 1))

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.const(values, np.int64)

    def __call__(self, op: str, *operands: Operand, name: str = "", **attrs: Any) -> str:
        """Append an operator of one result and return the result's name.

        ``name`` names the result, and the operator after it.
        """
        return self.many(op, 1, *operands, name=name, **attrs)[0]

    def many(
        self, op: str, results: int, *operands: Operand, name: str = "", **attrs: Any
    ) -> tuple[str, ...]:
        values = [v if isinstance(v, str) else self._constant(v) for v in operands]
        stem = name or f"v{len(self.nodes)}"
        outputs = tuple(stem if i == 0 else f"{stem}_{i}" for i in range(results))
        self.nodes.append(helper.make_node(op, values, outputs, name, **attrs))
        return outputs

    def _constant(self, value: float | int | Array) -> str:
        return self.const(value, value.dtype if isinstance(value, np.ndarray) else np.float32)

    def mean(self, x: str, axis: int = -1, keepdims: int = 1) -> str:
        """ReduceMean as the opset spells it."""
        if self.opset < 18:
            return self("ReduceMean", x, axes=[axis], keepdims=keepdims)
        return self("ReduceMean", x, self.ints(axis), keepdims=keepdims)

    def graph(self, *outputs: str) -> TileGraph:
        """The tile graph whose outputs are these values; keeps the model for :meth:`run`."""
        results = [helper.make_empty_tensor_value_info(v) for v in outputs]
        weights = [numpy_helper.from_array(a, n) for n, a in self.weights.items()]
        proto = helper.make_graph(self.nodes, "net", list(self.inputs.values()), results, weights)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [
            helper.make_opsetid(d, 1) for d in sorted({n.domain for n in self.nodes} - {""})
        ]
        model = helper.make_model(proto, opset_imports=opsets, ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True, strict_mode=True)
        self.model = inferred
        return _tile_graph(inferred, self.weights, self.opset)

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """ONNX Runtime's answers for the model of the last :meth:`graph`."""
        return list(session(self.model).run(None, dict(feeds)))

    def save(self, path: Path, *outputs: str) -> Path:
        """Write the model whose outputs are these values; its path."""
        self.graph(*outputs)
        onnx.save(self.model, path)
        return path


def session(
    model: Path | str | onnx.ModelProto, library: Path | None = None, *,
    optimized: bool = False, threads: int = 1,
) -> onnxruntime.InferenceSession:  # fmt: skip
    """A session in this process: with a result's library, with ONNX Runtime's optimizations."""
    options = onnxruntime.SessionOptions()
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    options.enable_mem_reuse = optimized  # it takes some dims of unknown size for equal ones
    if library is not None:
        options.register_custom_ops_library(str(library))
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def loaded(net: Net, *outputs: str) -> TileGraph:
    """The graph as the importer reads it: it knows more sizes than ONNX's own inference."""
    with NamedTemporaryFile(suffix=".onnx") as file:
        return load(net.save(Path(file.name), *outputs))


def _tile_graph(model: onnx.ModelProto, weights: Mapping[str, Array], opset: int) -> TileGraph:
    graph = model.graph
    specs = {
        v.name: _spec(v.type.tensor_type) for v in (*graph.value_info, *graph.input, *graph.output)
    }
    nodes = [
        Node(n.op_type, tuple(n.input), tuple(n.output), _attributes(n), n.domain, source=i)
        for i, n in enumerate(graph.node)
    ]
    made = TileGraph.of_nodes(
        nodes,
        [v.name for v in graph.input],
        [v.name for v in graph.output],
        {n: _weight(n, a) for n, a in weights.items()},
        specs,
        opset,
    )
    made.model_of = space_of
    return made


def _spec(tensor: Any) -> TensorSpec:
    dims = tensor.shape.dim if tensor.HasField("shape") else None
    shape = None if dims is None else tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or f"?{i}"
        for i, d in enumerate(dims)
    )  # fmt: skip
    return TensorSpec(DType.from_onnx(tensor.elem_type), shape)


def _weight(name: str, array: Array) -> Weight:
    dtype = DType.from_onnx(helper.np_dtype_to_tensor_dtype(array.dtype))
    assert dtype is not None
    return Weight(name, dtype, array.shape, lambda: array)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {k: _plain(v) for k, v in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return tuple(value) if isinstance(value, (list, tuple)) else value


# ---- running -----------------------------------------------------------------------------


def optimized(
    graph: TileGraph, phases: Sequence[Phase] | None = None, limits: SchedulerLimits = LEGAL
) -> DecisionTrace:
    """Run the phases (all by default) on ``graph``, in place."""
    cost = CostModel(Machine(), BINDINGS)
    return schedule_rewrites(graph, every_phase() if phases is None else phases, cost, limits)


def every_phase(tiles: bool = False, bf16: bool = True, **request: Any) -> tuple[Phase, ...]:
    """All phases but row tiling for a :class:`~tracea_graph.passes.PlanRequest`."""
    wanted = passes.PlanRequest(**request)
    rules = cpu_phases.structure_rules(wanted)
    return (*passes.phases(wanted, rules), *cpu_phases.phases(wanted, tiles, bf16))


def schedule_only(graph: TileGraph, *passes: Pass) -> DecisionTrace:
    """Run just these passes, as one phase."""
    return optimized(graph, (Phase("test", passes),))


def evaluate(graph: TileGraph, feeds: Mapping[str, Array]) -> list[Array]:
    """The graph's outputs: fused regions by their NumPy reference in fp64, others by onnx."""
    values: dict[str, Array] = {n: w.array() for n, w in graph.weights.items()}
    values |= feeds
    for region in graph.regions():
        operands = [values[v] for v in region.operands if v]
        results = _fused(region, operands) if region.fused else _original(region, values, graph)
        values |= dict(zip(region.results, results, strict=False))
    return [values[v] for v in graph.outputs]


def _fused(region: Region, operands: Sequence[Array]) -> list[Array]:
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in operands]
    results = (np.asarray(r) for r in region.params.reference(wide))
    return [r.astype(np.float32) if r.dtype.kind == "f" else r for r in results]


def _original(region: Region, values: Mapping[str, Array], graph: TileGraph) -> list[Array]:
    feeds = {v: values[v] for v in region.reads}
    return run_nodes(region.nodes, list(feeds), region.writes, graph.opset, feeds)


def run_nodes(
    nodes: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
    feeds: Mapping[str, Array],
) -> list[Array]:
    """Nodes by onnx's own reference implementation."""
    model = node_model(nodes, inputs, outputs, opset, feeds)
    return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def run_body(body: Body, arrays: Sequence[Array], opset: int) -> list[Array]:
    """A body by ONNX Runtime, its optimizations off."""
    net = Net(opset)
    feeds = dict(zip(body.inputs, arrays, strict=True))
    net.model = node_model(body.nodes, body.inputs, body.outputs, opset, feeds)
    # ONNX Runtime takes no NumPy array in bf16 or 8-bit floats, but reads such constants
    fixed = {v for v, a in feeds.items() if a.dtype.name.startswith(("bfloat16", "float8"))}
    graph = net.model.graph
    graph.initializer.extend(numpy_helper.from_array(feeds[v], v) for v in fixed)
    kept = [v for v in graph.input if v.name not in fixed]
    graph.ClearField("input")
    graph.input.extend(kept)
    for node in list(graph.node):  # nor does it return one
        to = next((a.i for a in node.attribute if a.name == "to"), None)
        if to == TensorProto.BFLOAT16 and node.output[0] in body.outputs:
            result = node.output[0]
            node.output[0] = f"{result}_in_bf16"
            wide = helper.make_node("Cast", [node.output[0]], [result], to=TensorProto.FLOAT)
            graph.node.append(wide)
    return net.run({v: a for v, a in feeds.items() if v not in fixed})


def node_model(
    nodes: Sequence[Node],
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
    feeds: Mapping[str, Array],
) -> onnx.ModelProto:
    """A model of just these nodes, inputs typed as the feeds are."""
    protos = [helper.make_node(n.op, n.inputs, n.outputs, **_onnx_attributes(n)) for n in nodes]
    kinds = {v: helper.np_dtype_to_tensor_dtype(feeds[v].dtype) for v in inputs}
    formals = [helper.make_tensor_value_info(v, t, feeds[v].shape) for v, t in kinds.items()]
    results = [helper.make_empty_tensor_value_info(v) for v in outputs]
    graph = helper.make_graph(protos, "nodes", formals, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _onnx_attributes(node: Node) -> dict[str, Any]:
    return {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in node.attrs.items()
    }


def relative_error(actual: Array, expected: Array) -> float:
    """max|actual − expected| over max|expected|; shapes must agree."""
    assert actual.shape == expected.shape, f"{actual.shape} is not {expected.shape}"
    if not expected.size:
        return 0.0
    scale = max(float(np.abs(expected).max()), 1e-30)
    return float(np.abs(actual.astype(np.float64) - expected).max()) / scale


# ---- questions tests of passes ask -------------------------------------------------------


def ops(graph: TileGraph) -> list[str]:
    """The regions' operators, producers first."""
    return [r.op for r in graph.regions()]


def only(graph: TileGraph, op: str) -> Region:
    """The single region of this operator."""
    (region,) = [r for r in graph.regions() if r.op == op]
    return region


def reasons(trace: DecisionTrace, rule: str) -> set[str]:
    """Why a rule missed or was rejected."""
    return {reason for name, reason in trace.misses() if name == rule}


def assert_same(
    net: Net, graph: TileGraph, feeds: Mapping[str, Array], limit: float = 1e-5
) -> None:
    """The rewritten graph computes what ONNX Runtime computes for the original model."""
    for actual, expected in zip(evaluate(graph, feeds), net.run(feeds), strict=True):
        assert relative_error(np.asarray(actual), expected) < limit
