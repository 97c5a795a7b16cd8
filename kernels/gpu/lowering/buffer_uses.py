"""Find the calls that write and read scratch buffers, to replace several calls by one."""

from __future__ import annotations

from dataclasses import dataclass

from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.program import Buffer, Call, View

__all__ = ["BufferUses"]


@dataclass
class BufferUses:
    """The calls that write and that read each buffer."""

    calls: list[Call]

    def __post_init__(self) -> None:
        self.writers: dict[Buffer, list[Call]] = {}
        self.readers: dict[Buffer, list[Call]] = {}
        for call in self.calls:
            for operand, view in CALLS.of(call).each(call):
                if view is not None:
                    found = self.writers if operand.written else self.readers
                    found.setdefault(view.buffer, []).append(call)

    def only_for(self, view: View, reader: Call) -> Call | None:
        """Return the call that computes a view, if ``reader`` alone reads its buffer."""
        writers, readers = (d.get(view.buffer, []) for d in (self.writers, self.readers))
        alone = view.buffer.kind == "temp" and len(writers) == 1 and readers == [reader]
        return writers[0] if alone else None
