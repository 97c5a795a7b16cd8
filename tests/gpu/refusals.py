"""Operators of models that a GPU does not run, and rewrites for which it has no kernel.

    python -m tests.gpu.refusals [NAME|FILE.onnx…]

Prints a line for each model (by default all of the zoo): its programs, and the operators outside
of them by type; then why the GPU backend refused regions, and how many.  Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from models.make import available, make
from tracea_graph import Options
from tracea_graph.check.symbol_bindings import choose_bindings
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.onnx_io import load
from tracea_graph.pipeline.planning import Planner
from tracea_graph.policy import CostModel
from tracea_graph.reason_codes import Code


def refusals(path: Path) -> tuple[int, Counter[str], Counter[str]]:
    """Return the number of a model's programs, operators outside of them, reasons of refusals."""
    model = load(path)
    sizes = choose_bindings(model.graph, (), model.inputs)[0][0].symbols
    options = Options(target="cuda:sm_90", keep="all")
    planner = Planner(model.graph, options, sizes, cost=CostModel(GPU.machine(()), sizes))
    assembly, plan = planner.assembled(planner.plan)
    left = Counter(r.op for r in assembly.graph.regions() if not r.fused)
    why = Counter(
        str(e.reason) for e in plan.trace.entries
        if e.code is Code.NO_KERNEL
    )  # fmt: skip
    why.update(f"without {e.rule}, which raised {e.raised}" for e in plan.trace.broken)
    return len(assembly.placed), left, why


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counts.most_common()) or "nothing"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=available())
    for name in parser.parse_args().models:
        with tempfile.TemporaryDirectory() as folder:
            own = name.endswith(".onnx")
            placed, left, why = refusals(Path(name) if own else make(name, Path(folder), True))
        programs = f"{placed} program{'s' * (placed != 1)}"
        sys.stdout.write(f"{Path(name).stem}: {programs}; outside: {_listed(left)}\n")
        for reason, count in why.most_common():
            sys.stdout.write(f"  {count} × {reason}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
