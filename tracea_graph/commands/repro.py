"""Pack what somebody else needs to reproduce a result or a failure."""

from __future__ import annotations

import json
import platform
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tracea_graph.onnx_io.weightless_models import regrow_weights, write_skeleton
from tracea_graph.target import host_fingerprint
from tracea_graph.temporary_files import ScratchFolder
from tracea_graph.toolchain.object_cache import write_atomically
from tracea_graph.version import versions

__all__ = ["FILE_OPTIONS", "RunOutcome", "replay_arguments", "replayable", "write_repro"]

FILE_OPTIONS = ("--config", "--lock", "--data", "--holdout")
"""Options that name a file to read, which a pack holds a copy of."""
_PRIVATE = ("--data", "--holdout")
"""Of those, the ones whose files hold the user's numbers."""
_PLACES = ("-o", "--output", "--save-lock", "--keep-sources", "--report", "--cache", "--storage")
"""Options that say where to write, which a replay decides itself."""
_REPLAY = '''\
"""Repeat what this pack is about: python replay.py [FOLDER], with tracea-graph installed."""

import json
import subprocess
import sys
from pathlib import Path

from tracea_graph.commands.repro import replayable

here = Path(__file__).resolve().parent
folder = Path(sys.argv[1] if len(sys.argv) > 1 else here / "replay")
folder.mkdir(parents=True, exist_ok=True)
facts = json.loads((here / "repro.json").read_text(encoding="utf-8"))
model = replayable(here, folder)
words = [str(here / w[5:]) if w.startswith("pack:") else w for w in facts["options"]]
command = [sys.executable, "-m", "tracea_graph", "optimize", str(model), *words]
lock = here / "lock.json"
if lock.exists() and "--lock" not in words:
    command += ["--lock", str(lock)]
code = subprocess.run([*command, "-o", str(folder / "result.onnx")]).returncode
report = folder / "result.json"
told = json.loads(report.read_text(encoding="utf-8")) if code == 0 and report.exists() else {}
codes = [told.get("code"), *(group["code"] for group in told.get("groups", ()))]
found = code, "crashed" in codes
expected = facts["outcome"]["exit_code"], facts["outcome"]["crashed"]
same = found == expected
words = [f"{code}, a worker crashed" if crashed else code for code, crashed in (found, expected)]
print(f"exit code {words[0]}, expected {words[1]}: {'' if same else 'not '}reproduced")
sys.exit(not same)
'''


@dataclass(frozen=True)
class RunOutcome:
    """How an optimization ended.

    ``error`` is the message if it failed.  ``crashed`` is True if a worker process died while it
    ran kernels; the run then continued without these kernels.
    """

    exit_code: int
    error: str = ""
    improved: bool | None = None
    crashed: bool = False


def replay_arguments(words: Sequence[str], weights: bool) -> tuple[list[str], dict[str, Path]]:
    """Return the command line of a replay, and the files to pack for it, by name in the pack.

    ``words`` are the original arguments.  Files that contain data of the user are packed only if
    ``weights``.
    """
    found: list[str] = []
    files: dict[str, Path] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, joined, value = word.partition("=")
        if flag in (*FILE_OPTIONS, *_PLACES):
            value = value if joined else rest.pop(0) if rest else ""
            if flag in FILE_OPTIONS and (weights or flag not in _PRIVATE):
                name = f"{flag.strip('-')}{Path(value).suffix}"
                files[name] = Path(value)
                found += [flag, f"pack:{name}"]
        else:
            found.append(word)
    return found, files


def write_repro(
    out: Path,
    model: Path,
    words: Sequence[str],
    outcome: RunOutcome,
    *,
    weights: bool = False,
    made: Mapping[str, Path] | None = None,
) -> None:
    """Write a pack (a zip file) with which an optimization can be repeated elsewhere.

    It holds the model, the options ``words`` as given to ``tracea-optimize``, the environment, a
    replay script, and the files ``made`` by their names in the pack.  The weights of the model are
    included only if ``weights``.  Raises ModelError, and OSError if the pack cannot be written.
    """
    options, files = replay_arguments(words, weights)
    with ScratchFolder("repro") as name:
        folder = Path(name)
        facts = write_skeleton(model, folder / "model.onnx", weights=weights)
        about: dict[str, Any] = {
            "outcome": asdict(outcome), "options": options, "weights": facts,
            "versions": versions(), "machine": dict(host_fingerprint()),
            "python": sys.version.split()[0], "system": platform.platform(),
        }  # fmt: skip
        text = json.dumps(about, indent=1, default=str)
        (folder / "repro.json").write_text(text, encoding="utf-8")
        (folder / "replay.py").write_text(_REPLAY, encoding="utf-8")
        whole = folder / "pack.zip"
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as pack:
            for own in ("repro.json", "replay.py", "model.onnx"):
                pack.write(folder / own, own)
            for inside, path in {**files, **(made or {})}.items():
                _add(pack, inside, path)
        write_atomically(out, whole.read_bytes())


def _add(pack: zipfile.ZipFile, name: str, path: Path) -> None:
    if path.is_dir():
        for one in sorted(p for p in path.rglob("*") if p.is_file()):
            pack.write(one, f"{name}/{one.relative_to(path).as_posix()}")
    elif path.exists():
        pack.write(path, name)


def replayable(pack: Path, folder: Path) -> Path:
    """Write the model of an unpacked pack and return its path.

    Weights that the pack does not contain are replaced by random ones.
    """
    facts = json.loads((pack / "repro.json").read_text(encoding="utf-8"))
    out = folder / "model.onnx"
    regrow_weights(pack / "model.onnx", facts["weights"], out)
    return out
