"""Measure a result's kernels again on this machine and drop those that lose.

A result may run on another machine than it was built on.  It has plans, bodies and a library, so
nothing is compiled: an operator type that is not faster is replaced by its function body.
``strip_custom_ops`` does this for all types, and thus turns the result back into plain ONNX.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tracea_graph.check.reference_outputs import run_reference
from tracea_graph.check.rewrite_selection import (
    GroupSelection,
    ModelWithLibrary,
    RewriteGroup,
    select_faster,
)
from tracea_graph.check.verify_outputs import compare_with_reference
from tracea_graph.commands.bench import model_subject
from tracea_graph.errors import UsageError, VerifyError
from tracea_graph.json_documents import read_document
from tracea_graph.onnx_io import DataPool, Model, WrittenModel, load, write
from tracea_graph.onnx_io.custom_op_inlining import CustomOpOrigin, custom_op_nodes
from tracea_graph.onnx_io.initializer_guards import is_guarded
from tracea_graph.options import Options
from tracea_graph.pipeline.model_inputs import Feed, gather_inputs
from tracea_graph.pipeline.output_files import ResultPaths, StagingFolder, staging
from tracea_graph.target import host_fingerprint
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.ttg import Region, TileGraph
from tracea_graph.version import versions
from tracea_graph.views import Report
from tracea_graph.views.kept_kernels_record import Retuned, RetunedRow

__all__ = ["retune", "strip_custom_ops", "write_inlined"]

Progress = Callable[[str], None]


def retune(path: Path, options: Options, progress: Progress = lambda _: None) -> Retuned:
    """Time the kernels of an optimized model on this machine, and remove those that are slower.

    Each custom operator type is timed against its ONNX body; types that are not faster are
    replaced by their bodies in the file.  ``options`` provide threads, shapes, data, budget and
    seed.  The model file is replaced atomically, or left unchanged if every type is faster; its
    library is removed if no kernel is left.  Raises UsageError if the model has no kernels, bodies
    or library, or if its kernels run only for default initializers; VerifyError if the kernels are
    wrong on this machine.
    """
    progress(f"reading {path.name}")
    model = load(path)
    if is_guarded(model):
        raise UsageError(
            f"{path} runs its kernels only while initializers have their defaults, and cannot be "
            "retuned: optimize the original here instead"
        )
    calls, library = custom_op_nodes(model), model_subject(path).library
    if not calls or library is None:
        missing = f"put {path.with_suffix('.so').name} beside it" if calls else "it is plain ONNX"
        raise UsageError(f"{path} has no kernels to retune: {missing}")
    feeds = gather_inputs(load(path, inline=True), options)
    with ScratchFolder() as name:
        plain = Path(name, "plain.onnx")
        strip_custom_ops(path, plain)
        progress("verifying")
        _check(plain, path, library, feeds.verification, options)
        progress("timing")
        variants = _Variants(path, library, calls, Path(name))
        groups = [
            RewriteGroup(t, variants.nodes(t), len(variants.nodes(t))) for t in variants.types
        ]
        decision = select_faster(
            plain, groups, variants.build, feeds.timing,
            threads=options.thread_counts, budget=options.budget,
        )  # fmt: skip
    progress("writing")
    found = _retuned(path, variants, decision)
    if found.dropped:
        _rewrite(path, found)
    return found


@dataclass
class _Variants:
    """The result with some of its operator types inlined; scratch files in ``folder``."""

    path: Path
    library: Path
    calls: tuple[CustomOpOrigin, ...]
    folder: Path

    def __post_init__(self) -> None:
        self._pool = DataPool(self.folder / "weights.data")
        self._made: dict[frozenset[str], ModelWithLibrary] = {
            frozenset(): ModelWithLibrary(self.path, self.library)
        }

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(call.op for call in self.calls))

    def nodes(self, op_type: str) -> tuple[str, ...]:
        return tuple(call.name for call in self.calls if call.op == op_type)

    def build(self, dropped: frozenset[str]) -> ModelWithLibrary:
        """Write the model with the bodies of ``dropped`` types inlined."""
        if dropped not in self._made:
            out = self.folder / f"{len(self._made)}.onnx"
            kept = frozenset(self.types) - dropped
            write_inlined(load(self.path, inline=True, kept=kept), out, kept, pool=self._pool)
            self._made[dropped] = ModelWithLibrary(out, self.library if kept else None)
        return self._made[dropped]


def _check(
    plain: Path, result: Path, library: Path, feeds: Mapping[str, Feed], options: Options
) -> None:
    """Raise VerifyError unless the kernels compute what the bodies do."""
    found = compare_with_reference(
        run_reference(plain, feeds), result, library, feeds,
        limits=options.limits, threads=max(options.thread_counts),
    )  # fmt: skip
    if found.status != "passed":
        raise VerifyError(f"{result.name} is wrong on this machine: {found.sentence}")


def _retuned(path: Path, variants: _Variants, decision: GroupSelection) -> Retuned:
    rows = tuple(
        RetunedRow(
            v.group.key,
            len(v.group.rewrites),
            v.kept and decision.candidate is not None,
            v.reason,
            v.code,
        )
        for v in decision.verdicts
    )
    total = {
        f"{n} thread{'s' * (n != 1)}, {label}": r.median
        for (n, label), r in decision.total.items()
        if decision.candidate is not None
    }
    machine = host_fingerprint()
    return Retuned(str(path), rows, total, versions(), machine, decision.notes)


def _rewrite(path: Path, found: Retuned) -> None:
    """Replace the model, its data and its report; remove the library if it is no longer used."""
    kept = frozenset(row.type for row in found.rows if row.kept)
    paths = ResultPaths(path)
    with staging(paths, ()) as stage:
        model = load(path, inline=True, kept=kept)
        written = write_inlined(model, stage.model, kept)
        _report(stage, found, written.data)
        stage.publish(written.data, [p for p in paths.libraries if kept and p.exists()])


def _report(stage: StagingFolder, found: Retuned, data: Path | None) -> None:
    """Write the report with the retuning results; start a new one where there is none."""
    report = _known(stage.paths.report) or Report(
        found.model, found.model, "improved", "retuned", versions=found.versions
    )
    kept = replace(report, data=data.name if data else None, retuned=found)
    stage.report.write_text(kept.to_json(), encoding="utf-8")


def _known(path: Path) -> Report | None:
    """Read a report; None if there is none of this version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return read_document(Report, data, str(path), "")
    except (OSError, ValueError, UsageError):
        return None


_OURS = "tracea."


def strip_custom_ops(path: Path, out: Path, single_file: bool = False) -> WrittenModel:
    """Write ``path`` with every custom operator replaced by its body, and no library.

    Weights are unpacked.  Raises UsageError if the model has no custom operator of this tool or
    was written without bodies, ModelError if it is no model.
    """
    if not custom_op_nodes(load(path)):
        raise UsageError(f"{path} has no operator of a tracea library: it is plain ONNX already")
    model = load(path, inline=True)
    if left := custom_op_nodes(model):
        raise UsageError(
            f"{path} was written without bodies (--require-library): the nodes that "
            f"{left[0].op} replaces are not in it"
        )
    return write_inlined(model, out, single_file=single_file)


def write_inlined(
    model: Model,
    out: Path,
    kept: Container[str] = (),
    *,
    single_file: bool = False,
    pool: DataPool | None = None,
) -> WrittenModel:
    """Write a loaded model with all custom operators inlined except the types in ``kept``.

    With none kept, the model no longer refers to a library.
    """
    _forget(model, kept)
    regions = [r for r in model.graph.regions() if not _is_constant(model.graph, r)]
    nodes = [node for region in regions for node in region.nodes]
    made = {v for node in nodes for v in node.outputs}
    weights = {n: w for n, w in model.graph.weights.items() if n not in made}
    return write(model, nodes, weights, out, single_file=single_file, pool=pool)


def _is_constant(graph: TileGraph, region: Region) -> bool:
    """Return True if a region only unpacks a weight: its results are stored instead."""
    return not any(map(graph.is_output, region.writes)) and all(
        v in graph.weights for v in region.writes
    )


def _forget(model: Model, kept: Container[str]) -> None:
    """Drop bodies of inlined operators; with the last one, all references to a library."""
    proto = model.skeleton
    bodies = [f for f in proto.functions if not f.domain.startswith(_OURS) or f.name in kept]
    proto.ClearField("functions")
    proto.functions.extend(bodies)
    if any(f.domain.startswith(_OURS) for f in bodies):
        return
    for field, name in (("opset_import", "domain"), ("metadata_props", "key")):
        others = [e for e in getattr(proto, field) if not getattr(e, name).startswith(_OURS)]
        proto.ClearField(field)
        getattr(proto, field).extend(others)
