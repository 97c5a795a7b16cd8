"""``tracea repro``: optimize a model, and pack what is needed to see the outcome elsewhere."""

from __future__ import annotations

import argparse
import json
import shlex
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tracea_graph import api
from tracea_graph.cli.arguments import optimize_parser, options_from_args
from tracea_graph.cli.error_messages import INTERNAL
from tracea_graph.commands.repro import RunOutcome, replayable, write_repro
from tracea_graph.errors import TraceaError, UsageError, VerifyError, WorkerError
from tracea_graph.options import Options
from tracea_graph.pipeline.output_files import check_file
from tracea_graph.temporary_files import ScratchFolder

__all__ = ["failure_outcome", "pack_failure", "run_repro"]


def run_repro(args: argparse.Namespace, console: Console) -> int:
    """Write a pack and return the exit code.  Raises UsageError for invalid options."""
    words = shlex.split(args.options)
    given = optimize_parser().parse_args([str(args.model), *words])
    if given.models != [args.model]:
        raise UsageError("tracea repro takes one model")
    out = args.output or args.model.with_suffix(".repro.zip")
    check_file(out, "-o", [args.model])
    with ScratchFolder("repro") as name, console.status("optimizing the packed model"):
        folder = Path(name)
        model = args.model
        if not args.weights:  # the outcome must be that of the pack
            first = folder / "first.zip"
            write_repro(first, args.model, words, RunOutcome(0))
            model = _regrown(first, folder)
        options = replace(
            options_from_args(given), output=folder / "result.onnx",
            save_lock=folder / "lock.json", keep_sources=folder / "sources",
        )  # fmt: skip
        outcome = _outcome(model, options)
        made = {
            "lock.json": folder / "lock.json", "report.json": folder / "result.json",
            "sources": folder / "sources",
        }  # fmt: skip
        write_repro(out, args.model, words, outcome, weights=args.weights, made=made)
    facts = {"pack": str(out), "exit_code": outcome.exit_code, "error": outcome.error}
    said = f"failed: {outcome.error}" if outcome.error else "succeeded"
    held = "with its weights" if args.weights else "with random weights"
    console.print(
        json.dumps(facts, indent=1) if args.json
        else f"{out}: optimizing the model {held} {said}\n"
        "to replay, unzip it and run: python replay.py",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    return 0


def _regrown(pack: Path, folder: Path) -> Path:
    import zipfile

    place = folder / "pack"
    with zipfile.ZipFile(pack) as packed:
        packed.extractall(place)
    grown = folder / "grown"
    grown.mkdir()
    return replayable(place, grown)


def _outcome(model: Path, options: Options) -> RunOutcome:
    try:
        report = api.optimize(model, options)
    except TraceaError as error:
        return RunOutcome(error.exit_code, str(error))
    except Exception as error:  # a bug: what the pack is for
        return RunOutcome(INTERNAL, f"{type(error).__name__}: {error}")
    return RunOutcome(0, report.crash, report.improved, bool(report.crash))


def failure_outcome(error: Exception) -> RunOutcome | None:
    """Return the outcome if the error is a wrong result, a dead worker or a bug; else None."""
    if isinstance(error, TraceaError):
        ours = isinstance(error, VerifyError | WorkerError)
        said = f"{type(error).__name__}: {error}"
        return RunOutcome(error.exit_code, said) if ours else None
    if isinstance(error, MemoryError | OSError):
        return None
    return RunOutcome(INTERNAL, f"{type(error).__name__}: {error}")


def pack_failure(model: Path, words: list[str], outcome: RunOutcome, folder: Path) -> Path:
    """Pack a failure without running anything again; return where the pack is.

    Raises ModelError and OSError if that is not possible.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    out = folder / f"{model.stem}.repro.zip"
    write_repro(out, model, words, outcome)
    return out
