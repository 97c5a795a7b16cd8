"""What a drawn model itself answers, in a process of its own: some inputs end it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path

import onnx

from tests.fuzz.deviating import deviating
from tests.fuzz.doubling import doubled
from tests.fuzz.judging import alike, settled
from tests.fuzz.steadiness import Array, brittle, jittered_twice, moved, reordered_twice
from tracea_graph.check.worker_pool import WorkerPool
from tracea_graph.errors import WorkerError

__all__ = ["Original"]

_HUGE = 1e20
"""Finite numbers from here may have infinite products."""

Answer = Mapping[str, Array]


class Original:
    """A model on disk, and beside it, once they are asked for, the models made of it.

    ``left`` are the values that ONNX Runtime's own operators write in the result, too.
    """

    def __init__(
        self,
        worker_pool: WorkerPool,
        path: Path,
        left: Collection[str] = (),
        deviates: bool = False,
    ) -> None:
        self._worker_pool, self._path, self._left, self._deviates = (
            worker_pool,
            path,
            left,
            deviates,
        )

    def answer(self, feed: Mapping[str, Array]) -> Answer | None:
        """Optimizations off.  None for inputs that ONNX Runtime does not take."""
        return self._asked(self._path, feed, "off")

    def judge(self, found: Answer, wanted: Answer, feed: Mapping[str, Array]) -> str:
        """What is wrong with an answer, where ``wanted`` is :meth:`answer`; or ""."""
        trouble = alike(found, wanted)
        if not trouble:
            return ""
        others = [wanted, self._asked(self._path, feed, "all")]
        paths = (self._path, self._path, *self._jittered)  # numbers may move alike, and cancel
        others += [self._asked(path, moved(feed, i), "off") for i, path in enumerate(paths)]
        if (
            max(
                (abs(a).max(initial=0.0) for a in feed.values() if a.dtype == "float32"), default=0
            )
            > _HUGE
        ):
            others.append(self._asked(self._brittle, feed, "off"))
        wide = {n: a.astype("float64") if a.dtype == "float32" else a for n, a in feed.items()}
        double = self._asked(self._doubled, wide, "off")
        others += [self._asked(path, wide, "off") for path in self._reordered]
        known = [answer for answer in others if answer is not None]
        trouble = settled(found, double or wanted, known)
        for other in self._deviating if trouble else ():
            answer = other.answer(feed)
            if answer is not None and not other.judge(found, answer, feed):
                return ""
        return trouble

    def _asked(self, path: Path, feed: Mapping[str, Array], level: str) -> Answer | None:
        try:
            with self._worker_pool.acquire(None, {}) as worker:
                worker.open("original", path, level=level)
                return worker.run("original", feed)
        except WorkerError:  # it refuses them, or they end its process
            return None

    @cached_property
    def _deviating(self) -> list[Original]:
        """With NaN where our kernels are known to have it."""
        made = [] if self._deviates else deviating(onnx.load(self._path), self._left)
        paths = [self._saved(model, f"deviating{i}") for i, model in enumerate(made)]
        return [Original(self._worker_pool, path, deviates=True) for path in paths]

    @cached_property
    def _jittered(self) -> list[Path]:
        made = jittered_twice(onnx.load(self._path))
        return [self._saved(model, f"jittered{i}") for i, model in enumerate(made)]

    @cached_property
    def _reordered(self) -> list[Path]:
        made = reordered_twice(onnx.load(self._path))
        return [self._saved(model, f"reordered{i}") for i, model in enumerate(made)]

    @cached_property
    def _brittle(self) -> Path:
        return self._saved(brittle(onnx.load(self._path)), "brittle")

    @cached_property
    def _doubled(self) -> Path:
        return self._saved(doubled(onnx.load(self._path)), "doubled")

    def _saved(self, model: onnx.ModelProto, what: str) -> Path:
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:  # sizes that differ may have one name,
                dim.ClearField("dim_param")  # and ONNX Runtime reuses buffers of equal names
        path = self._path.with_suffix(f".{what}.onnx")
        onnx.save(model, path)
        return path
