"""Names of models, and short names of layers by what the paths of their nodes share.

Exporters name nodes by module paths, ``/encoder/layer.0/attention/self/MatMul``.  What all names
of a model share is left out, and several nodes go by their common path, or by its first and last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tracea_graph.ttg import TileGraph

__all__ = ["LayerNames", "model_name", "shorten"]

_MOST = 0.9
"""Share of a layer's nodes that a path must cover: single shape operators lie anywhere."""
_DIGITS = re.compile(r"\d+")
_RANGE = " … "

Path = tuple[str, ...]


def model_name(graph: TileGraph) -> str:
    """Return the name of the file that a graph was read from, else the graph's own.

    Exporters call almost every graph ``main_graph``.
    """
    return graph.source.name if graph.source else graph.name or "graph"


def shorten(text: str, most: int = 48) -> str:
    """Shorten a text to at most ``most`` characters by leaving out its middle."""
    if len(text) <= most:
        return text
    front = (most - 1) // 3
    return f"{text[:front]}…{text[len(text) - (most - 1 - front) :]}"


class LayerNames:
    """Finds short names for layers of a model.

    ``names`` are the names of all its nodes.
    """

    def __init__(self, names: Iterable[str]) -> None:
        paths = [path for path in map(_module, names) if path]
        shared = _common(paths, 1.0)
        # a model of a single module keeps its name
        self._skipped = shared if any(len(path) > len(shared) for path in paths) else shared[:-1]

    def of(self, nodes: Sequence[str]) -> str:
        """Return a name for the layer that consists of some nodes; empty if there are no nodes."""
        distinct = list(dict.fromkeys(nodes))
        if len(distinct) < 2:
            return "/".join(self._own(_path(distinct[0]))) if distinct else ""
        modules = [self._own(path) for path in map(_module, distinct) if path]
        if not modules:
            return f"{distinct[0]}{_RANGE}{distinct[-1]}"
        shared = _common(modules, _MOST)
        ends = [path[len(shared)] for path in modules if _extends(path, shared)]
        repeated = len({_DIGITS.sub("#", end) for end in ends}) == 1
        several = len(set(ends)) > 1 and (repeated or not shared)
        if not several:
            return "/".join(shared) or _of_root(distinct)
        first, last = _ends(ends) if repeated else (ends[0], ends[-1])
        inside = [path[len(shared) + 1 :] for path in modules if _extends(path, shared)]
        below = _common(inside, _MOST) if repeated else ()
        return "/".join((*shared, f"{first}{_RANGE}{last}", *below))

    def block(self, nodes: Sequence[str]) -> str:
        """Return the name of the repeated block that has the nodes: ``encoder/layer.0``."""
        for path in (self._own(path) for path in map(_module, nodes) if path):
            for i, part in enumerate(path, 1):
                if _DIGITS.search(part):
                    return "/".join(path[:i])
        return self.of(nodes[:1])

    def _own(self, path: Path) -> Path:
        """Return a path without the parts that all names of the model share."""
        shared = self._skipped
        return path[len(shared) :] if path[: len(shared)] == shared else path


def _path(name: str) -> Path:
    return tuple(part for part in name.split("/") if part) or (name,)


def _module(name: str) -> Path:
    """Return the path of the module a node is in."""
    return _path(name)[:-1]


def _extends(path: Path, shared: Path) -> bool:
    return len(path) > len(shared) and path[: len(shared)] == shared


def _common(paths: Sequence[Path], share: float) -> Path:
    """Return the longest path that this share of the paths begins with."""
    found: Path = ()
    inside = list(paths)
    while inside:
        counts = Counter(path[len(found)] for path in inside if len(path) > len(found))
        name, count = counts.most_common(1)[0] if counts else ("", 0)
        if not counts or count < share * len(paths):
            break
        found = (*found, name)
        inside = [path for path in inside if path[: len(found)] == found]
    return found


def _ends(numbered: Iterable[str]) -> tuple[str, str]:
    """Return the first and the last of names that differ in numbers only."""
    ordered = sorted(set(numbered), key=lambda name: [int(n) for n in _DIGITS.findall(name)])
    return ordered[0], ordered[-1]


def _of_root(nodes: Sequence[str]) -> str:
    return f"{nodes[0]}{_RANGE}{nodes[-1]}" if len(nodes) > 1 else nodes[0]
