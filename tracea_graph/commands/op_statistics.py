"""Count the FLOPs of a model's nodes and the bytes they touch in one run.

The counts are taken from the tile graph with function bodies inlined.  A node is one operator, or
all operators of a custom op's body; bytes of the latter are counted in two ways::

    unfused = sum over operators of the operands and results each one touches
    bytes = operands from outside, touched once, and results read outside

The difference is what fusing saves.  Constants computed at load count for nothing, and neither do
reshapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tracea_graph.errors import GraphError
from tracea_graph.onnx_io.custom_op_inlining import CustomOpOrigin, custom_op_of_inlined
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.ttg.iteration_space import extent_value

__all__ = ["NodeStats", "OpStatistics", "symbol_values", "touched_bytes"]

_VIEWS = frozenset(
    ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "Constant")
)

_LONGEST_FUSION = 4
"""Largest number of operators in a fusion of ONNX Runtime."""
_CONVOLUTIONS = ("Conv", "ConvTranspose")
"""Counted here because they have no iteration space."""
_PRODUCTS = ("MatMul", "Gemm", "Attention", "LSTM", "GRU", "RNN", *_CONVOLUTIONS)


@dataclass(frozen=True)
class NodeStats:
    """Work and traffic of one node.

    * ``flops``: operators without a model count none.
    * ``weights``, ``activations``: bytes of constants and of other values that the node touches.
    * ``unfused``: the bytes that its original operators would touch if run one by one.
    * ``size``: rows × columns × depth of the operator with the most FLOPs, preceded by the batch
      count if above 1; for other operators, the dims of the result.
    """

    flops: float
    weights: float
    activations: float
    unfused: float
    size: str = ""

    @property
    def bytes(self) -> float:
        """Bytes of outside values, each touched once."""
        return self.weights + self.activations


def touched_bytes(
    graph: TileGraph,
    region: Region,
    sizes: Mapping[str, int],
    bytes_of: Callable[[str], float],
) -> tuple[dict[str, float], dict[str, float]]:
    """Return how many bytes of each value a region reads, and how many it writes.

    ``bytes_of`` returns the size of a whole value.  A region without an iteration space is assumed
    to touch its values as a whole.
    """
    model = graph.model(region)
    if model is None:
        sides = [{v: bytes_of(v) for v in part} for part in (region.reads, region.writes)]
        return sides[0], sides[1]
    bound = model.bind(sizes)
    starts, stops = np.zeros((1, len(bound.extents)), np.int64), bound.extents[None]
    reads, writes = dict[str, float](), dict[str, float]()
    for side, accesses in ((reads, bound.reads), (writes, bound.writes)):
        for access in accesses:
            touched = access.item * float(access.touched(starts, stops)[0])
            whole = bytes_of(access.value)
            side[access.value] = min(side.get(access.value, 0.0) + touched, whole)
    return reads, writes


def symbol_values(graph: TileGraph, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the value of every symbol for these inputs."""
    found: dict[str, int] = {}
    for name, array in feeds.items():
        shape = graph.spec(name).shape or ()
        found |= {d: n for d, n in zip(shape, array.shape, strict=False) if isinstance(d, str)}
    return found


class OpStatistics:
    """FLOPs and bytes of a model's nodes, by the names ONNX Runtime gives them.

    ``graph`` has the bodies of ``calls`` inlined; ``sizes`` binds its symbols.
    """

    def __init__(
        self, graph: TileGraph, calls: Sequence[CustomOpOrigin], sizes: Mapping[str, int]
    ) -> None:
        self.graph, self.sizes = graph, sizes
        self.calls = {call.name: call for call in calls}
        self._constant = self._constants()
        self._groups: dict[str, list[Region]] = {}
        owner = {v: call.name for call in calls for v in call.outputs if v}
        for region in graph.regions():
            self._groups.setdefault(self._name(region, owner), []).append(region)

    @property
    def flops(self) -> float:
        """FLOPs of the whole model."""
        return sum(self._flops(region) for region in self.graph.regions())

    @property
    def products(self) -> float:
        """FLOPs of matrix multiplications, convolutions and recurrences."""
        return sum(self._flops(r) for r in self.graph.regions() if r.op in _PRODUCTS)

    def elements(self, op: str) -> float:
        """Return the number of elements that ops of a kind write; unknown sizes count as 0."""
        regions = [r for r in self.graph.regions() if r.op == op and not self._idle(r)]
        return sum(self._count(r.results[0]) for r in regions)

    def _count(self, value: str) -> float:
        try:
            return float(prod(self._dims(value)))
        except GraphError:
            return 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of all constants the model reads."""
        read = {v for r in self.graph.regions() for v in r.reads if v in self.graph.weights}
        return float(sum(self.graph.weights[v].nbytes for v in read))

    def is_constant(self, value: str) -> bool:
        """Return True if a value does not depend on the inputs."""
        return value in self._constant

    def of(self, name: str, op: str) -> NodeStats | None:
        """Return a node's statistics; None for an unknown node, or if its sizes are unknown.

        ONNX Runtime names a fused node after one of the nodes it was fused from, usually the last.
        The statistics therefore cover all nodes from the one of type ``op`` to the named one.
        """
        regions = self._groups.get(name) or self._groups.get(self._part(name), [])
        if name not in self.calls and len(regions) == 1:
            regions = self._back_to(op.removeprefix("Fused"), regions)
        try:
            return self._work(regions) if regions else None
        except GraphError:
            return None

    # ---- names -------------------------------------------------------------------------

    def _name(self, region: Region, owner: Mapping[str, str]) -> str:
        inner = [
            custom_op_of_inlined(v) for v in (*(n.name for n in region.nodes), *region.writes)
        ]
        call = next((c for c in inner if c in self.calls), "")
        named = next((n.name for n in region.nodes if n.name), region.id)
        return call or next((owner[v] for v in region.writes if v in owner), named)

    def _part(self, name: str) -> str:
        """Return the longest known name that a node's name begins or ends with; empty if none."""
        found = (n for n in self._groups if name.startswith(n) or name.endswith(n))
        return max(found, key=len, default="")

    def _back_to(self, op: str, regions: list[Region]) -> list[Region]:
        """Return the regions from the nearest producer ``op`` on; ``regions`` if there is none."""
        paths = [regions]
        for _ in range(_LONGEST_FUSION):
            for path in paths:
                if path[0].op == op:
                    return path
            sources = ((self.graph.producer(v), path) for path in paths for v in path[0].reads)
            paths = [[source, *path] for source, path in sources if source is not None]
        return regions

    # ---- counting ----------------------------------------------------------------------

    def _work(self, regions: Iterable[Region]) -> NodeStats:
        every = list(regions)
        live = [r for r in every if not self._idle(r)]
        walked = [self._walked(region) for region in live]
        inner = {self._root(v) for region in live for v in region.writes}
        outside: dict[str, float] = {}
        for reads, _ in walked:
            for value, size in reads.items():
                if (root := self._root(value)) not in inner:
                    outside[root] = min(outside.get(root, 0.0) + size, self._bytes(root))
        weights = sum(size for value, size in outside.items() if value in self._constant)
        leaving = {self._root(v): v for r in every for v in r.writes if self._leaves(v, every)}
        results = sum(self._bytes(v) for root, v in leaving.items() if root in inner)
        return NodeStats(
            flops=sum(map(self._flops, live)),
            weights=weights,
            activations=sum(outside.values()) - weights + results,
            unfused=sum(sum(part.values()) for pair in walked for part in pair),
            size=self._size(max(live, key=self._flops)) if live else "",
        )

    def _size(self, region: Region) -> str:
        model = self.graph.model(region)
        if model is None and region.op not in _CONVOLUTIONS:
            return ""
        bound = model.bind(self.sizes) if model else None
        batch, *problem = bound.problem if bound else self._convolution(region)
        if problem[2] > 1:
            return f"{batch}·" * (batch > 1) + "×".join(map(str, problem))
        shape = bound.writes[0].shape.tolist() if bound and bound.writes else []
        return "×".join(str(n) for n in shape if n > 1)

    def _walked(self, region: Region) -> tuple[dict[str, float], dict[str, float]]:
        """Return the bytes an operator touches of each value it reads and writes."""
        return touched_bytes(self.graph, region, self.sizes, self._bytes)

    def _flops(self, region: Region) -> float:
        model = None if self._idle(region) else self.graph.model(region)
        try:
            if model is None and region.op in _CONVOLUTIONS:
                return 2.0 * prod(self._convolution(region))
            return model.flops(self.sizes) if model else 0.0
        except GraphError:
            return 0.0

    def _convolution(self, region: Region) -> tuple[int, int, int, int]:
        """Return groups, and the rows, columns and depth of each group's matrix multiplication."""
        data, weight = self._dims(region.operands[0]), self._dims(region.operands[1])
        groups = region.node.attrs.get("group", 1)
        assert isinstance(groups, int)
        if region.op == "ConvTranspose":
            return groups, prod(data) // data[1], prod(weight[1:]), data[1] // groups
        result = self._dims(region.results[0])
        return groups, prod(result) // result[1], result[1] // groups, prod(weight[1:])

    def _idle(self, region: Region) -> bool:
        """Return True if the region costs nothing at run time."""
        return region.op in _VIEWS or all(v in self._constant for v in region.writes)

    def _leaves(self, value: str, group: Sequence[Region]) -> bool:
        ids = {region.id for region in group}
        used = any(use.region.id not in ids for use in self.graph.uses(value))
        return used or self.graph.is_output(value)

    def _root(self, value: str) -> str:
        """Return the value whose memory this one views."""
        while (region := self.graph.producer(value)) is not None and region.op in _VIEWS:
            if not region.reads:
                break
            value = region.reads[0]
        return value

    def _bytes(self, value: str) -> float:
        """Return the bytes of a whole value.  Raises GraphError if its size is unknown."""
        dtype = self.graph.spec(value).dtype
        if dtype is None:
            raise GraphError(f"the type of {value!r} is unknown")
        return prod(self._dims(value)) * float(dtype.size)

    def _dims(self, value: str) -> list[int]:
        shape = self.graph.spec(value).shape
        if shape is None:
            raise GraphError(f"the rank of {value!r} is unknown")
        return [extent_value(d, self.sizes) for d in shape]

    def _constants(self) -> frozenset[str]:
        """Values that do not depend on the inputs."""
        known = set(self.graph.weights)
        for region in self.graph.regions():
            if known.issuperset(region.reads):
                known.update(region.writes)
        return frozenset(known)
