"""How many drawn graphs hold what: ``python -m tests.fuzz.shares [--count N] [--seed N]``.

Prints the shares of graphs with quantized, half-precision and control-flow steps, of all that are
drawn and of those whose answers stand still, which alone are optimized and compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from tests.fuzz.running import write_steady
from tests.fuzz.strategies import drawn

__all__ = ["FEWEST", "KINDS", "held_by", "main", "share"]

KINDS = ("quantized", "half", "control flow")
FEWEST = 0.3
"""The smallest share of graphs that must hold one of these."""
_INTEGER = ("QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger", "QLinear")
_BRANCHING = frozenset({"If", "Loop", "Scan"})
_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def held_by(model: ModelProto) -> frozenset[str]:
    """Return which of :data:`KINDS` a model holds."""
    found = set()
    for graph in _graphs(model.graph):
        found |= _kinds_of(graph)
    return frozenset(found)


def share(models: Iterable[ModelProto], *kinds: str) -> float:
    """Return the share of models that hold one of these kinds at least, all if none is given."""
    wanted = frozenset(kinds or KINDS)
    found = [bool(wanted & held_by(model)) for model in models]
    return sum(found) / len(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the shares."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.shares", description=__doc__)
    parser.add_argument("--count", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        paths, _ = write_steady(Path(folder), args.count, args.seed)
        sets = {
            "drawn": list(drawn(args.count, args.seed)),
            "compared": list(map(onnx.load, paths)),
        }
    for name, models in sets.items():
        single = ", ".join(f"{kind} {share(models, kind):.0%}" for kind in KINDS)
        line = f"{name}: {len(models)} graphs; {single}; any of them {share(models):.0%}"
        sys.stdout.write(f"{line}\n")
    return 0


def _kinds_of(graph: GraphProto) -> set[str]:
    found = set()
    for node in graph.node:
        if any(word in node.op_type for word in _INTEGER):
            found.add("quantized")
        if node.op_type in _BRANCHING:
            found.add("control flow")
    tensors = (a.t for node in graph.node for a in node.attribute if a.HasField("t"))
    if any(tensor.data_type in _HALVES for tensor in (*graph.initializer, *tensors)):
        found.add("half")
    return found


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and those inside its nodes."""
    yield graph
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.type == AttributeProto.GRAPH:
            yield from _graphs(attribute.g)


if __name__ == "__main__":
    sys.exit(main())
