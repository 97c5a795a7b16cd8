"""``tracea verify`` and ``tracea strip``: check a result, and remove its library."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tracea_graph.cli.console import print_written_files
from tracea_graph.cli.option_flags import options_from_flags
from tracea_graph.commands.drop_slower_kernels import strip_custom_ops
from tracea_graph.commands.verify import verify_models
from tracea_graph.errors import VerifyError
from tracea_graph.pipeline.output_files import check_file
from tracea_graph.views.verify import comparison_json, render_comparison

__all__ = ["run_strip", "run_verify"]


def run_verify(args: argparse.Namespace, console: Console) -> int:
    """Compare outputs, print, and return the exit code."""
    options = options_from_flags(args)
    found = verify_models(
        args.original, args.candidate, options, args.library, dict(args.tolerance)
    )
    shown = comparison_json(found) if args.json else render_comparison(found)
    console.print(shown, markup=False, soft_wrap=args.json)
    return 0 if found.verification.status == "passed" else VerifyError.exit_code


def run_strip(args: argparse.Namespace, console: Console) -> int:
    """Remove the library, print what was written, and return the exit code."""
    output = Path(args.output)
    check_file(output, "--output", [args.model])
    written = strip_custom_ops(args.model, output, args.single_file)
    print_written_files(console, *filter(None, (written.model, written.data)))
    return 0
