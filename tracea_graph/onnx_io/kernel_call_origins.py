"""Names of the original nodes that each kernel call of a program computes, as metadata text.

``tracea.nodes`` lists each name once.  ``tracea.calls`` has one field per call, separated by
``;``; a field lists ranges of positions in ``tracea.nodes``: ``0-4,7;5;;6`` are four calls, the
third without names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["decode_calls", "encode_calls"]

Names = tuple[str, ...]


def encode_calls(originals: Sequence[str], calls: Iterable[Sequence[str]]) -> str:
    """Encode, for each kernel call, which of ``originals`` it computes.

    Each call is given by names of original nodes; a name that is not among ``originals`` is left
    out.
    """
    places = {name: i for i, name in enumerate(originals)}
    return ";".join(_ranges(sorted({places[n] for n in names if n in places})) for names in calls)


def decode_calls(originals: Sequence[str], text: str) -> tuple[Names, ...]:
    """Return the names of the original nodes of each call, from :func:`encode_calls`.

    Empty if ``text`` was not written for ``originals``.
    """
    if not text:
        return ()
    try:
        return tuple(
            tuple(originals[i] for part in field.split(",") if part for i in _positions(part))
            for field in text.split(";")
        )
    except (ValueError, IndexError):
        return ()


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][1] == n - 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _positions(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)
