"""Parent side of a worker: a child process that runs models that may crash.

A crash, a hang or garbage output of generated code ends the worker, not the tool: every request
has a time limit.  A worker that died or exceeded the limit is killed with its whole process group,
and the error names the request.  If ONNX Runtime only rejects a request,
:class:`RejectedByRuntime` is raised and the worker stays alive.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracea_graph.check.custom_op_libraries import libraries_to_register
from tracea_graph.check.timing_statistics import PairedTimes
from tracea_graph.check.worker_arrays import read_arrays, write_arrays
from tracea_graph.errors import OutOfTime, WorkerCrash, WorkerError
from tracea_graph.ir import RANDOM_OPS
from tracea_graph.temporary_files import ScratchFolder, kill_group

__all__ = [
    "Array",
    "NodeTime",
    "RandomOutputs",
    "RejectedByRuntime",
    "SessionInfo",
    "SessionPort",
    "UnloadableModel",
    "Worker",
    "unlimited_seconds",
]  # fmt: skip

Array = npt.NDArray[Any]

RandomOutputs = Mapping[str, tuple[str, tuple[int | None, ...]]]
"""NumPy's element type name and the dims, by value name."""
_NOTHING: RandomOutputs = MappingProxyType({})

_RAW_TYPES = {
    "tensor(bfloat16)": "bfloat16",
    "tensor(float8e4m3fn)": "float8_e4m3fn",
    "tensor(float8e4m3fnuz)": "float8_e4m3fnuz",
    "tensor(float8e5m2)": "float8_e5m2",
    "tensor(float8e5m2fnuz)": "float8_e5m2fnuz",
}


_UNKNOWN_OPERATOR = "is not a registered function/op"
"""What ONNX Runtime says of an operator that it does not know."""

_STARVED = 120.0
"""Extra seconds to wait for a worker that got less than half of its time limit as CPU time,
because other processes used the cores.
"""


class RejectedByRuntime(WorkerError):
    """ONNX Runtime or onnx rejected a model, a library or an input; the worker stays alive."""


class UnloadableModel(RejectedByRuntime):
    """ONNX Runtime cannot load a model."""

    exit_code = 2


@dataclass(frozen=True)
class SessionPort:
    """An input or output as ONNX Runtime reports it; ``type`` is, for example, ``tensor(float)``.

    Each dimension in ``shape`` is a number, a symbol, or None.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class SessionInfo:
    """Creation time of a session in seconds, and its inputs and outputs.

    ``private_bytes`` is the growth of the process's private memory if that was requested, else 0.
    ``providers`` are the execution providers it runs in, the preferred one first.
    """

    seconds: float
    private_bytes: int
    inputs: tuple[SessionPort, ...]
    outputs: tuple[SessionPort, ...]
    providers: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConcurrentTimes:
    """Milliseconds of each run of sessions that ran concurrently.

    ``wall`` is the number of seconds that the measurement took, ``cpu`` the processor seconds that
    the whole process used during it.
    """

    ms: tuple[float, ...]
    wall: float
    cpu: float


@dataclass(frozen=True)
class NodeTime:
    """One node of the graph that ONNX Runtime executes: median µs and the µs of each run.

    ``domain`` is the operator's declared domain, empty for ONNX Runtime's own.  Times include the
    overhead of profiling.
    """

    name: str
    op: str
    domain: str
    us: float
    samples: tuple[float, ...]


def _advice(said: str) -> str:
    """Return what helps against an operator that ONNX Runtime does not know; empty otherwise."""
    unknown = _UNKNOWN_OPERATOR in said and not libraries_to_register()
    return "; name the library of its operators with --custom-ops-library" if unknown else ""


def unlimited_seconds() -> float:
    """Return infinity, for callers without a deadline."""
    return math.inf


class Worker(AbstractContextManager["Worker"]):
    """A process that opens, runs and measures models; use it in a ``with`` statement.

    * ``limit``: default time limit of a request in seconds;
    * ``env``: variables that are added to the environment (``TRACEA_ISA``);
    * ``left``: returns the caller's remaining seconds.  A request that is not answered by then
      ends the worker and raises OutOfTime; a request made later raises OutOfTime without ending
      it.

    Once the process died, every further request raises WorkerError.
    """

    script: ClassVar[Path] = Path(__file__).with_name("worker_main.py")
    """Script that the process runs."""

    def __init__(self, *, limit: float = 120.0, env: Mapping[str, str] | None = None) -> None:
        self._limit, self._count, self._buffer, self._why = limit, 0, b"", ""
        self.left: Callable[[], float] = unlimited_seconds
        self._folder = ScratchFolder("worker")
        self._stderr = Path(self._folder.name) / "stderr"
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(self.script), self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the process is running; False once it died, exceeded a limit or was stopped."""
        return not self._why

    def stop(self) -> None:
        """End the process and all its children, and remove its files.  May be called twice."""
        self._why = self._why or "the worker was stopped"
        self._kill()
        self._folder.cleanup()

    # ---- requests ----------------------------------------------------------------------

    def open(
        self,
        name: str,
        model: Path,
        library: Path | None = None,
        *,
        threads: int = 1,
        level: str = "all",
        extra: Sequence[str] = (),
        cut: RandomOutputs = _NOTHING,
        jitter: float = 0.0,
        weigh: bool = False,
        providers: Sequence[str] = (),
        limit: float | None = None,
    ) -> SessionInfo:
        """Create a session called ``name``, replacing an earlier one of that name.

        * ``level``: ONNX Runtime's own optimizations: ``"all"``, ``"basic"`` or ``"off"``;
        * ``extra``: inner values that become outputs too;
        * ``cut``: random values (:meth:`random`) that become inputs; the operand of a Dropout,
          Multinomial or Bernoulli that writes one becomes an output ``NAME.drawn_from``;
        * ``jitter``: relative size of the noise that is added to values before they are rounded to
          integers;
        * ``weigh``: whether to measure the memory that the session adds to the process;
        * ``providers``: execution providers to prefer to the CPU's, if they are installed.
        """
        request: dict[str, Any] = {
            "name": name, "model": str(model.resolve()), "threads": threads, "level": level,
            "library": str(library.resolve()) if library else "", "extra": list(extra),
            "cut": {name: list(spec) for name, spec in cut.items()}, "weigh": weigh,
            "jitter": jitter, "others": [str(path) for path in libraries_to_register()],
            "providers": list(providers),
        }  # fmt: skip
        try:
            found = self._ask("open", f"open {name!r} ({model.name})", limit, **request)
        except RejectedByRuntime as error:
            if library is not None:
                raise
            raise UnloadableModel(
                f"ONNX Runtime cannot load {model.name}: {error}{_advice(str(error))}"
            ) from None
        inputs, outputs = (
            tuple(SessionPort(n, t, tuple(d)) for n, t, d in found[k])
            for k in ("inputs", "outputs")
        )
        ran_in = tuple(found["providers"])
        return SessionInfo(found["seconds"], found["private_bytes"], inputs, outputs, ran_in)

    def load(self, library: Path) -> None:
        """Load a library without a model.

        Raises RejectedByRuntime with the message of the library or of the loader.
        """
        self._ask("load", f"load {library.name}", None, library=str(library.resolve()))

    def close(self, name: str) -> None:
        """Close a session; unknown names are ignored."""
        self._ask("close", f"close {name!r}", None, name=name)

    def clear(self) -> None:
        """Close all sessions."""
        self._ask("clear", "drop all sessions", None)

    def run(
        self, name: str, feeds: Mapping[str, Array], *, limit: float | None = None
    ) -> dict[str, Array]:
        """Run a session; return all outputs by name.

        A sequence is returned as ``name[i]``, a map as ``name.keys`` and ``name.values``.
        Sequences are fed as ``name[i]`` too.
        """
        answer = self._path("arrays")
        found = self._ask("run", f"run {name!r}", limit, feeds, name=name, answer=str(answer))
        arrays = read_arrays(str(answer), found["arrays"])
        answer.unlink()
        typed = (_restore(a, k) for a, k in zip(arrays, found["kinds"], strict=True))
        return dict(zip(found["names"], typed, strict=True))

    def compare(
        self,
        a: str,
        b: str,
        feeds: Mapping[str, Array],
        *,
        pairs: int = 15,
        warmup: int = 2,
        seconds: float = 60.0,
    ) -> PairedTimes:
        """Run two sessions by turns, reversing their order every pair; stop after ``seconds``."""
        what = f"compare {a!r} with {b!r}"
        found = self._ask(
            "compare", what, seconds + self._limit, feeds,
            sessions=[a, b], pairs=pairs, warmup=warmup, seconds=seconds,
        )  # fmt: skip
        a_ms, b_ms = found["ms"]
        return PairedTimes(tuple(a_ms), tuple(b_ms))

    def serve(
        self, names: Sequence[str], feeds: Mapping[str, Array], *, seconds: float
    ) -> ConcurrentTimes:
        """Run sessions concurrently for ``seconds``, each as often as it can."""
        what = f"serve with {len(names)} sessions"
        found = self._ask(
            "serve", what, seconds + self._limit, feeds, sessions=list(names), seconds=seconds
        )
        return ConcurrentTimes(tuple(found["ms"]), found["wall"], found["cpu"])

    def profile(
        self, name: str, feeds: Mapping[str, Array], runs: int = 15, *, warmup: int = 2
    ) -> tuple[NodeTime, ...]:
        """Return the times of the nodes of an open session's model, profiled in a new session."""
        return self._profiles([name], feeds, runs, warmup)[0]

    def profile_pair(
        self, a: str, b: str, feeds: Mapping[str, Array], runs: int = 15, *, warmup: int = 2
    ) -> tuple[tuple[NodeTime, ...], tuple[NodeTime, ...]]:
        """Return node times of two models that ran by turns: sample i of both is one pair."""
        first, second = self._profiles([a, b], feeds, runs, warmup)
        return first, second

    def check(self, model: Path) -> None:
        """Run onnx's checker with shape inference.  Raises RejectedByRuntime with its message."""
        self._ask("check", f"check {model.name}", None, model=str(model.resolve()))

    def values(self, model: Path) -> tuple[str, ...]:
        """Return the values that nodes of the model's main graph write, in node order."""
        return tuple(self._ask("values", f"read {model.name}", None, model=str(model.resolve())))

    def random(self, model: Path) -> tuple[str, ...]:
        """Return the values that random operators write and that outputs depend on."""
        found = self._ask(
            "random",
            f"read {model.name}",
            None,
            model=str(model.resolve()),
            ops=sorted(RANDOM_OPS),
        )
        return tuple(found)

    def takes_jitter(self, model: Path) -> bool:
        """Return whether the model rounds computed values to integers, or adds masks to scores."""
        return bool(
            self._ask("takes_jitter", f"read {model.name}", None, model=str(model.resolve()))
        )

    # ---- transport ---------------------------------------------------------------------

    def _profiles(
        self, names: list[str], feeds: Mapping[str, Array], runs: int, warmup: int
    ) -> list[tuple[NodeTime, ...]]:
        found = self._ask(
            "profile", f"profile {' and '.join(names)}", None, feeds,
            sessions=names, runs=runs, warmup=warmup,
        )  # fmt: skip
        return [
            tuple(NodeTime(n, op, domain, us, tuple(all_us)) for n, op, domain, us, all_us in rows)
            for rows in found["rows"]
        ]

    def _ask(
        self,
        do: str,
        what: str,
        limit: float | None,
        feeds: Mapping[str, Array] | None = None,
        **request: Any,
    ) -> Any:
        if self._why:
            raise WorkerError(f"{self._why}, so it cannot {what}")
        if self.left() <= 0:
            raise OutOfTime(f"there was no time left to {what}")
        path = self._path("arrays") if feeds is not None else None
        if path is not None and feeds is not None:
            arrays = write_arrays(str(path), map(_bits, feeds.values()))
            request |= {"feeds": str(path), "names": list(feeds), "arrays": arrays}
        try:
            self._send(what, {"do": do, **request})
            reply = self._receive(what, limit if limit is not None else self._limit)
        except KeyboardInterrupt:
            self._fail(f"the worker was interrupted when asked to {what}")
            raise
        if path is not None:
            path.unlink()
        if "error" in reply:
            raise RejectedByRuntime(reply["error"])
        return reply["ok"]

    def _send(self, what: str, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._died(what) from None

    def _receive(self, what: str, limit: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        start, worked = time.monotonic(), self._worked()
        pipe, end = self._process.stdout.fileno(), start + limit
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, min(end - time.monotonic(), self.left()))):
                    if self.left() <= 0:
                        self._fail(late := f"there was no time left to {what}")
                        raise OutOfTime(late)
                    rested = limit - (self._worked() - worked)
                    starved = time.monotonic() - start > limit + _STARVED
                    if starved or rested < limit / 2:
                        raise self._fail(f"the worker took more than {limit:.0f} s to {what}")
                    end = time.monotonic() + min(rested, _STARVED)
                    continue
                chunk = os.read(pipe, 1 << 16)
                if not chunk:
                    raise self._died(what)
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _worked(self) -> float:
        """CPU seconds the worker has used; wall-clock seconds where unknown."""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        except OSError:
            return time.monotonic()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def _died(self, what: str) -> WorkerError:
        code = self._process.wait()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        tail = self._stderr.read_text(encoding="utf-8", errors="replace").strip()[-400:]
        said = f"; it said: {tail}" if tail else ""
        self._fail(why := f"the worker died ({cause}) when asked to {what}{said}")
        return WorkerCrash(why)

    def _fail(self, why: str) -> WorkerError:
        self._why = why
        self._kill()
        return WorkerError(why)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # already gone
            kill_group(self._process.pid)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # the unsent request of a dead worker
                    pipe.close()

    def _path(self, suffix: str) -> Path:
        self._count += 1
        return Path(self._folder.name) / f"{self._count}.{suffix}"


def _bits(array: Array) -> Array:
    """Return an array in a type that NumPy has: bf16 as integers."""
    if array.dtype.name in _RAW_TYPES.values():
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    return array


def _restore(array: Array, kind: str) -> Array:
    if kind in _RAW_TYPES:
        import ml_dtypes

        return array.view(np.dtype(getattr(ml_dtypes, _RAW_TYPES[kind])))
    return array
