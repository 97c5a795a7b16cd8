"""The imported model: its tile graph, and the metadata that export needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from onnx import ModelProto, TypeProto

from tracea_graph.ir import DType, TensorSpec, Weight
from tracea_graph.ttg import TileGraph

__all__ = ["Model"]


@dataclass(frozen=True, eq=False)
class Model:
    """An imported model.

    * ``graph``: the model in canonical form;
    * ``inputs``: inputs that a caller must feed;
    * ``overridable``: initializers that a caller may feed too (IR ≥ 4); they are graph inputs
      rather than weights;
    * ``guarded``: overridable initializers that are treated as weights.  A result compares the fed
      values with them and, if any differ, runs the original's nodes with the constants in
      ``stored``;
    * ``widened``: half types whose arithmetic ``graph`` does in float32 (see
      ``onnx_io.half_to_float32``);
    * ``float32_form``: the file of that graph, once it has been written;
    * ``node_count``: number of nodes in the file;
    * ``size``: bytes of the file and of the external data in use.

    ``skeleton`` (the model without large tensor data) and ``defaults`` (values of overridable
    initializers) are private to this package.
    """

    path: Path
    graph: TileGraph
    opsets: Mapping[str, int]
    ir_version: int
    inputs: tuple[str, ...]
    overridable: frozenset[str]
    size: int
    skeleton: ModelProto = field(repr=False)
    defaults: Mapping[str, Weight] = field(default_factory=dict, repr=False)
    guarded: Mapping[str, Weight] = field(default_factory=dict, repr=False)
    stored: Mapping[str, Weight] = field(default_factory=dict, repr=False)
    widened: frozenset[DType] = frozenset()
    node_count: int = 0
    float32_form: Path | None = None

    @property
    def runnable(self) -> Path:
        """The file that ONNX Runtime runs as the original: for a bf16 model, its float32 form."""
        refused = DType.BF16 in self.widened
        return self.in_float32 if refused else self.path

    @property
    def in_float32(self) -> Path:
        """The file of the model's float32 form, or the original file if there is none."""
        return self.float32_form or self.path

    @property
    def unknown(self) -> frozenset[str]:
        """Overridable initializers that are read and whose type no kernel supports."""
        return frozenset(v for v in self.overridable if v not in self.guarded and self._is_read(v))

    @cached_property
    def with_defaults(self) -> TileGraph:
        """``graph`` with overridable initializers as weights too, which hold their defaults.

        Nobody feeds them in verification and timing, and they say what the inputs mean: whether
        zeros or ones of a mask hide keys, or how long a table is.
        """
        known = {n: w for n, w in self.defaults.items() if n not in self.graph.weights}
        if not known:
            return self.graph
        graph = self.graph.copy()
        graph.weights.update(known)
        return graph

    def _is_read(self, value: str) -> bool:
        return bool(self.graph.uses(value)) or self.graph.is_output(value)

    @property
    def containers(self) -> dict[str, tuple[bool, TensorSpec]]:
        """Inputs that are sequences (True) or optionals (False), with the spec of an element."""
        found = {}
        for value in self.skeleton.graph.input:
            kind, several = value.type, False
            while (what := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
                several |= what == "sequence_type"
                kind = getattr(kind, what).elem_type
            if what == "tensor_type" and kind is not value.type:
                found[value.name] = (several, _spec(kind.tensor_type))
        return found


def _spec(tensor: TypeProto.Tensor) -> TensorSpec:
    """Spec of a tensor type; each unnamed dimension gets a symbol of its own."""
    dims = enumerate(tensor.shape.dim) if tensor.HasField("shape") else ()
    shape = tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or f"?{i}" for i, d in dims
    )
    return TensorSpec(DType.from_onnx(tensor.elem_type), shape)
