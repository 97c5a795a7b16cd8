"""Print digests of plans, weights and sources, to prove that a source change changed nothing.

``python -m models.digests [MODEL.onnx…]`` prints a line per model and precision: plans, stored
weights (whatever their names and order) and generated sources, each by the first digits of its
SHA-256.  Without models it takes the zoo, with large weights left empty (see
:func:`models.make.make`).  Run it in the checkouts of two commits and compare with ``diff``.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from models.make import available, make
from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.errors import TraceaError
from tracea_graph.kernels.cpu.emitter import compilation_units
from tracea_graph.kernels.cpu.isa_levels import X86
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.onnx_io import load
from tracea_graph.options import Options
from tracea_graph.passes import WEIGHT_DEPENDENT
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel, Machine

__all__ = ["digests", "main"]

_SKIPPED = (*WEIGHT_DEPENDENT, "unstructured-sparse-gemm")
"""Rules that would exploit weights of zeros."""
PRECISIONS = ("fp32", "bf16", "int16", "bf16x2")


def digests(path: Path, precision: str) -> str:
    """Return the digests of one model's plans, weights and sources, or the planning error.

    Gains are predicted for a fixed machine, on which only ``bf16x2`` has AMX.
    """
    model = load(path)
    sizes = choose_bindings(model.graph, (), model.inputs)[0][0].symbols
    cost = CostModel(Machine(tiles=precision == "bf16x2"), sizes)
    options = Options(keep="all", precision=precision, max_error=1.0, skip=_SKIPPED)
    planner = Planner(model.graph, options, sizes, cost=cost)
    try:
        assembly, _ = planner.assembled(planner.plan)
    except TraceaError as error:
        return f"{type(error).__name__}: {error}"
    isas = X86.levels if precision != "fp32" else X86.plain
    sources = compilation_units(
        assembly.kernels, assembly.chains.values(), [isa.name for isa in isas]
    )
    plans = (repr((item.type, encode(item.program))).encode() for item in assembly.placed)
    weights = assembly.weights().values()
    stored = (hashlib.sha256(f"{w.spec}".encode() + w.array().tobytes()).digest() for w in weights)
    parts = (plans, sorted(stored), ((s.symbol + s.text).encode() for s in sources))
    return " ".join((str(len(assembly.placed)), *map(_digest, parts)))


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the digests of models and return 0."""
    parser = argparse.ArgumentParser(prog="python -m models.digests", description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument(
        "--only", nargs="+", choices=available(), metavar="NAME", help="of the zoo"
    )
    parser.add_argument("--precision", choices=PRECISIONS, action="append")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        for path in options.models or _zoo(Path(folder), options.only or available()):
            for precision in options.precision or PRECISIONS:
                print(path.stem, precision, digests(path, precision), flush=True)
    return 0


def _zoo(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = make(name, folder, hollow=True)
        yield path
        path.unlink()


if __name__ == "__main__":
    sys.exit(main())
