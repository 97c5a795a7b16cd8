"""Where results go, and how they get there: written whole, renamed into place, model last."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tracea_graph.errors import UsageError

__all__ = ["Paths", "paths_for", "publish", "staging"]


@dataclass(frozen=True)
class Paths:
    """The files one result consists of; the data file's name carries its hash."""

    model: Path

    @property
    def library(self) -> Path:
        return self.model.with_suffix(".so")

    @property
    def report(self) -> Path:
        return self.model.with_suffix(".json")


def paths_for(source: Path, output: Path | None, several: bool = False) -> Paths:
    """Where the result of ``source`` goes.

    Raises UsageError if that is the input itself, its folder is missing or not writable, or one
    file name is given for several models.
    """
    default = f"{source.stem}.tracea.onnx"
    if output is None:
        target = source.with_name(default)
    elif output.is_dir() or str(output).endswith(os.sep):
        target = output / default
        _make_folder(output)
    elif several:
        raise UsageError(f"-o {output} names one file for several models; give a folder")
    elif output.suffix != ".onnx":
        raise UsageError(f"-o {output} must end in .onnx, or be a folder")
    else:
        target = output
    if target.resolve() == source.resolve():
        raise UsageError(f"the output {target} is the input; choose another name")
    if not target.parent.is_dir():
        raise UsageError(f"the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"the folder {target.parent} is not writable")
    return Paths(target)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from None


@contextmanager
def staging(paths: Paths) -> Iterator[Path]:
    """A private folder beside the output, gone afterwards whatever happens.

    An OSError inside (disk full, permission) becomes a UsageError.
    """
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=".tracea-", dir=paths.model.parent))
        yield folder
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EPERM, errno.EROFS, errno.EDQUOT):
            raise
        raise UsageError(f"cannot write {paths.model}: {error.strerror}") from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def publish(stage: Path, paths: Paths, data: Path | None, library: Path | None) -> Path | None:
    """Move staged files into place: data, library, report, then the model.

    ``stage`` holds the model and report under their final names.  Afterwards a library or data
    file of an earlier result of this tool that the new one does not use is removed.  Returns the
    data file's final path.
    """
    old_data = _earlier_data(paths)
    old_library = old_data is not None or _is_ours(paths)
    final_data = None
    if data is not None:
        final_data = paths.model.with_name(data.name)
        os.replace(data, final_data)
    if library is not None:
        os.replace(library, paths.library)
    os.replace(stage / paths.report.name, paths.report)
    os.replace(stage / paths.model.name, paths.model)
    if library is None and old_library:
        paths.library.unlink(missing_ok=True)
    if old_data is not None and old_data != final_data:
        old_data.unlink(missing_ok=True)
    return final_data


def _earlier(paths: Paths) -> dict[str, object]:
    """The report of an earlier result of this tool at the same place, or nothing."""
    try:
        found = json.loads(paths.report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and "tracea" in found.get("versions", {}) else {}


def _is_ours(paths: Paths) -> bool:
    return bool(_earlier(paths).get("library"))


def _earlier_data(paths: Paths) -> Path | None:
    name = _earlier(paths).get("data")
    if not isinstance(name, str) or not name.endswith(".data"):
        return None
    data = paths.model.with_name(Path(name).name)
    return data if data.name.startswith(f"{paths.model.stem}.") and data.is_file() else None
