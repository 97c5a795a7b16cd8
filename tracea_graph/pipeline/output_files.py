"""Publish results: files are staged completely, then renamed into place, the model last."""

from __future__ import annotations

import errno
import filecmp
import json
import mmap
import os
import re
import shutil
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracea_graph.check.worker_pool import WorkerPool, new_worker
from tracea_graph.errors import ModelError, UsageError, WorkerError
from tracea_graph.onnx_io import files_of, node_count, write_original
from tracea_graph.options import Options
from tracea_graph.reason_codes import Code
from tracea_graph.target import host_fingerprint
from tracea_graph.temporary_files import STAGED, ScratchFolder, open_regular_file, remove_leftovers
from tracea_graph.toolchain import Library
from tracea_graph.toolchain.object_cache import write_atomically
from tracea_graph.toolchain.platforms import ENDINGS
from tracea_graph.version import versions
from tracea_graph.views import Report

__all__ = [
    "ResultPaths",
    "StagingFolder",
    "check_file",
    "check_folder",
    "check_overwrites",
    "keep_unreadable_original",
    "paths_of_all",
    "result_paths",
    "staging",
    "write_text",
]

_FULL = 1 << 24
"""Free bytes below which a disk counts as full: what did not fit is removed again."""
_LONGEST_NAME = 255
"""Assumed limit of a file name in bytes if the system does not report one."""
_DATA = re.compile(r"\.[0-9a-f]{10}\.data")
_LIBRARY_MARKS = (re.compile(rb"tracea\.[0-9a-f]{10}\0"), re.compile(rb"RegisterCustomOps\0"))
_UNWRITABLE = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS,
     errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EIO)
)  # fmt: skip


_LONGEST_NAME = 255
"""Limit of a file name in bytes, on all file systems in use."""


def _possible(model: Path) -> list[str]:
    """Return the endings of libraries beside a model whose names are not too long to exist."""
    names = ((ending, model.with_suffix(ending).name) for ending in ENDINGS)
    return [ending for ending, name in names if len(os.fsencode(name)) <= _LONGEST_NAME]


@dataclass(frozen=True)
class ResultPaths:
    """The files of one result; the data file's name contains its hash."""

    model: Path

    @property
    def libraries(self) -> tuple[Path, ...]:
        """Where kernel libraries may be, for all platforms."""
        return tuple(map(self.of_library, _possible(self.model)))

    def of_library(self, ending: str) -> Path:
        """Return the path of the library whose name has the given ending."""
        return self.model.with_suffix(ending)

    @property
    def report(self) -> Path:
        """The report and manifest."""
        return self.model.with_suffix(".json")

    def published(self, staged: Path, built: Library | None) -> dict[str, str]:
        """Return, by platform, where the libraries of a staged model will be published.

        A library for this machine alone has the platform "".
        """
        start = len(staged.stem)
        every = built.all if built else ()
        return {each.platform: str(self.of_library(each.path.name[start:])) for each in every}

    def data(self, sha256: str) -> Path:
        """Return the path of the data file that has this SHA-256."""
        return self.model.with_name(f"{self.model.stem}.{sha256[:10]}.data")


def result_paths(source: Path, output: Path | None, folder: bool = False) -> ResultPaths:
    """Return where the result of ``source`` goes; ``folder`` says ``output`` must be a folder.

    An ``output`` without a suffix is a folder too, which is created if it does not exist.  Raises
    UsageError if the output is the input, if it cannot be written, or if ``source`` is a folder.
    """
    if not source.name:
        raise UsageError(f"{source} is a folder, not a model")
    default = f"{source.stem}.tracea.onnx"
    if output is None:
        target = source.with_name(default)
    elif os.path.isdir(output) or not (output.suffix or os.path.exists(output)):
        target = output / default
    elif folder:
        raise UsageError(f"-o {output} must be a folder here, but names a file")
    elif output.suffix != ".onnx":
        raise UsageError(f"-o {output} must end in .onnx, or be a folder")
    else:
        target = output
    if _same(target, source):
        raise UsageError(f"the output {target} is the input; choose another name")
    if os.path.isdir(target):
        raise UsageError(f"the output {target} is a folder; choose another name")
    made = output is not None and target.parent == output and not os.path.exists(output)
    home, paths = target.parent.parent if made else target.parent, ResultPaths(target)
    _check_folder(home)
    for path in (target.parent, paths.model, paths.report):
        _check_name(path.name, home, "choose another with -o")
    return paths


def paths_of_all(
    sources: Sequence[Path], output: Path | None, folder: bool = False
) -> tuple[ResultPaths, ...]:
    """Return where the results of several models go.

    Raises UsageError, before anything is done, if one would overwrite another or an input.
    """
    every = tuple(result_paths(source, output, folder or len(sources) > 1) for source in sources)
    read = {_file_id(source): source for source in sources if os.path.exists(source)}
    written: dict[Path, Path] = {}
    for source, paths in zip(sources, every, strict=True):
        if (input_there := read.get(_file_id(paths.model))) is not None:
            raise UsageError(
                f"{input_there} is an input, and the result of {source} would overwrite it"
            )
        if (other := written.setdefault(paths.model.absolute(), source)) is not source:
            if other == source:
                raise UsageError(f"{source} is given twice")
            raise UsageError(f"{other} and {source} are both written to {paths.model}")
    return every


def check_file(path: Path, what: str, inputs: Sequence[Path]) -> None:
    """Raise UsageError if the file of the option ``what`` cannot be written."""
    if os.path.isdir(path):
        raise UsageError(f"{what} {path} is a folder; name a file")
    if any(_same(path, file) for file in inputs):
        raise UsageError(f"{what} {path} is an input; choose another name")
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        raise UsageError(f"{what} {path} cannot be written: its folder does not exist")
    _check_name(path.name, folder, f"choose another for {what}")


def check_folder(path: Path, what: str) -> None:
    """Raise UsageError if the path of the option ``what`` is not a folder."""
    if os.path.exists(path) and not os.path.isdir(path):
        raise UsageError(f"{what} {path} is a file; name a folder")


def write_text(path: Path, text: str) -> None:
    """Write a file atomically.  Raises UsageError."""
    try:
        write_atomically(path, text.encode(errors="xmlcharrefreplace"))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


@dataclass(frozen=True)
class StagingFolder:
    """A private ``folder`` beside the output whose files are moved into place at the end.

    ``inputs`` are the files the model is read from; they are never replaced or removed.
    """

    folder: Path
    paths: ResultPaths
    inputs: tuple[Path, ...]

    @property
    def model(self) -> Path:
        """The staged model; its data file and library are staged beside it."""
        return self.folder / self.paths.model.name

    @property
    def beside(self) -> Path:
        """Path of a staged model in the output folder, where it can refer to a data file there."""
        return self.paths.model.with_name(f"{self.folder.name}.onnx")

    @property
    def report(self) -> Path:
        """The staged report."""
        return self.folder / self.paths.report.name

    def publish(
        self, data: Path | None, libraries: Sequence[Path] = (), model: Path | None = None
    ) -> None:
        """Move the staged data, libraries and report into place, then the model.

        Afterwards the libraries and the data file of an earlier result are removed if the new
        result does not use them.
        """
        paths, old = self.paths, _earlier_data(self.paths)
        new = paths.model.with_name(data.name) if data is not None else None
        if data is not None and new is not None and not _holds(new, data):
            os.replace(data, new)
        staged = (model or self.model).stem
        places = {paths.of_library(library.name[len(staged) :]): library for library in libraries}
        for place, library in places.items():
            os.replace(library, place)
        os.replace(self.report, paths.report)
        os.replace(model or self.model, paths.model)
        for place in paths.libraries:
            if place not in places and _is_our_library(place):
                place.unlink(missing_ok=True)
        if old is not None and old != new and not any(_same(old, file) for file in self.inputs):
            old.unlink(missing_ok=True)


def _holds(place: Path, data: Path) -> bool:
    """Return True if ``place`` already has the bytes of ``data``.

    Keeping the file lets processes that have it mapped share it.  Its name is its hash, but the
    content may be damaged, so it is compared.
    """
    return place.is_file() and (_same(place, data) or filecmp.cmp(place, data, shallow=False))


@contextmanager
def staging(paths: ResultPaths, inputs: Sequence[Path]) -> Iterator[StagingFolder]:
    """Yield a staging folder that is removed afterwards in all cases.

    Raises UsageError if an output path holds a file that this tool did not write.  An OSError in
    the block that says a file cannot be written (disk full, no permission) becomes a UsageError.
    """
    check_overwrites(paths, inputs)
    home, scratch, stage = paths.model.parent, None, None
    made = not home.exists()
    try:
        home.mkdir(exist_ok=True)
        remove_leftovers(home)
        scratch = ScratchFolder(folder=home)
        stage = StagingFolder(Path(scratch.name), paths, tuple(inputs))
        yield stage
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        raise UsageError(_complaint(error, home, paths)) from error
    finally:
        if stage is not None:
            endings = _possible(stage.beside)
            for file in (stage.beside, *map(stage.beside.with_suffix, endings)):
                file.unlink(missing_ok=True)
        if scratch is not None:
            scratch.cleanup()
        if made:
            with suppress(OSError):  # it has results, or could not be created
                home.rmdir()


def _complaint(error: OSError, home: Path, paths: ResultPaths) -> str:
    """Return what could not be written, and why; a full disk does not say which one it is."""
    temporary = Path(tempfile.gettempdir())
    if isinstance(error.filename, str):
        return f"cannot write {_meant(Path(error.filename), home)}: {error.strerror}"
    if error.errno == errno.ENOSPC and _is_full(temporary) and not _is_full(home):
        return f"cannot write to {temporary}: {error.strerror}; set TMPDIR to another folder"
    return f"cannot write {paths.model}: {error.strerror}"


def _is_full(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < _FULL


def _meant(found: Path, home: Path) -> Path:
    """Return the output file that a failed write of a staged file was for."""
    if found.name.startswith(STAGED):
        return home
    return home / found.name if found.parent.name.startswith(STAGED) else found


def _check_name(name: str, folder: Path, advice: str) -> None:
    """Raise UsageError if ``name`` is too long for a file in the folder."""
    limit = os.pathconf(folder, "PC_NAME_MAX") if hasattr(os, "pathconf") else _LONGEST_NAME
    if len(os.fsencode(name)) > limit:
        raise UsageError(
            f"{name} is longer than the {limit} bytes a file's name may have in {folder}; {advice}"
        )


def _check_folder(folder: Path) -> None:
    if not os.path.isdir(folder):
        raise UsageError(f"the folder {folder} does not exist")
    effective = os.access in os.supports_effective_ids
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        raise UsageError(f"the folder {folder} is not writable; choose another with -o")


def check_overwrites(paths: ResultPaths, inputs: Sequence[Path]) -> None:
    """Check that the output paths may be overwritten.

    Raises UsageError if a file there belongs to the input, or was not written by this tool.
    """
    for path in (paths.model, *paths.libraries, paths.report):
        if any(_same(path, file) for file in inputs):
            raise UsageError(f"{path} belongs to the input; choose another output with -o")
    advice = "move it, or choose another output with -o"
    for path in paths.libraries:
        if path.exists() and not _is_our_library(path):
            raise UsageError(f"{path} exists and was not written by this tool; {advice}")
    if paths.report.exists() and not _earlier(paths):
        raise UsageError(f"{paths.report} exists and was not written by this tool; {advice}")


def _same(a: Path, b: Path) -> bool:
    return os.path.exists(a) and os.path.exists(b) and a.samefile(b)


def _file_id(path: Path) -> tuple[int, int] | None:
    """Return a key that identifies a file whatever its name; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_our_library(path: Path) -> bool:
    try:
        with (
            open_regular_file(path) as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
        ):
            return all(mark.search(view) for mark in _LIBRARY_MARKS)
    except (OSError, ValueError):  # unreadable or empty
        return False


def _earlier(paths: ResultPaths) -> Mapping[str, Any]:
    """Return the report of an earlier result at these paths; empty if there is none."""
    try:
        with open_regular_file(paths.report) as file:
            found = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    known = isinstance(found, dict) and isinstance(found.get("versions"), dict)
    return found if known and "tracea" in found["versions"] else {}


def _earlier_data(paths: ResultPaths) -> Path | None:
    """Return the data file of an earlier result at these paths."""
    name = _earlier(paths).get("data")
    if not isinstance(name, str):
        return None
    data = paths.model.with_name(Path(name).name)
    ours = data.name.startswith(paths.model.stem) and _DATA.fullmatch(
        data.name.removeprefix(paths.model.stem)
    )
    return data if ours and data.is_file() else None


def keep_unreadable_original(
    source: Path,
    error: Exception,
    paths: ResultPaths,
    options: Options,
    worker_pool: WorkerPool | None,
) -> Report:
    """Write the original as the result of a model whose import ended with ``error``.

    Raises ``error`` if ONNX Runtime rejects the model too, if the error is a bug of this tool and
    the environment is strict, or if the error is about memory or the file system.  Raises
    UsageError if the result cannot be written.
    """
    bug = not isinstance(error, ModelError)
    if isinstance(error, MemoryError | OSError) or (bug and options.environment.strict):
        raise error
    try:
        files, count = files_of(source), node_count(source)
    except ModelError:
        raise error from None
    if not _runs(source, worker_pool):
        raise error
    why = f"{type(error).__name__}: {error} (a bug; -v shows where)" if bug else str(error)
    with staging(paths, files) as stage:
        data = write_original(source, stage.model).data
        report = Report(
            input=str(source),
            output=str(paths.model),
            outcome="kept original",
            reason=f"ONNX Runtime can read it, this tool cannot: {why}",
            data=str(paths.model.with_name(data.name)) if data else None,
            code=Code.RAISED if bug else Code.UNSUPPORTED_MODEL,
            nodes_before=count,
            nodes_after=count,
            status_reason="nothing was rewritten",
            faults=("".join(traceback.format_exception(error)),) if bug else (),
            versions=versions(),
            machine=host_fingerprint(),
        )
        stage.report.write_text(report.to_json(), encoding="utf-8")
        stage.publish(data, (), stage.model)
    return report


def _runs(model: Path, worker_pool: WorkerPool | None) -> bool:
    """Return True if ONNX Runtime, in its own process, opens the model and it has nodes to run."""
    with (worker_pool.acquire if worker_pool else new_worker)(None, {}) as worker:
        try:
            return bool(worker.open("original", model).outputs)
        except WorkerError:  # refused, or the process died
            return False
