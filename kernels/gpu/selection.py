"""Choose the tile of a GPU kernel by the sizes of a call: the rule that plans and policy share."""

from __future__ import annotations

__all__ = ["choose_tile"]

_FEW_OPERANDS = 2
"""Maximum operands of a chain before a norm for which one warp has enough registers."""
_LONG_ROWS, _MANY_ROWS = 1024, 1024
_SHORT_HEAD = 64


def choose_tile(
    op: str,
    dtype: str,
    rows: int,
    columns: int,
    operands: int = 1,
    head: int = 0,
    permuted: bool = False,
) -> tuple[str, str]:
    """Return the tile of an op on elements of a type, and why; two empty strings for an only tile.

    ``rows``, ``columns`` and ``head`` are 0 if they differ between runs.  ``operands`` counts the
    tensors that a chain before a norm reads, ``head`` is the longer of both head sizes of an
    attention, and a ``permuted`` copy is contiguous along different axes before and after.
    """
    if op in ("norm", "softmax", "reduce"):
        if not columns or columns > _LONG_ROWS:
            return "1x256", "rows may be long: a block reduces one"
        if operands > _FEW_OPERANDS:
            return "1x256", f"{operands} operands take the registers of a whole block"
        return "4x32", f"rows of {columns} fit the registers of one warp"
    if op in ("gemm", "conv"):
        wide = rows >= _MANY_ROWS
        which = f"{rows} rows" if rows else "rows that differ between runs"
        why = f"{which} {'fill large tiles' if wide else 'leave large tiles empty'}"
        if dtype == "f32":
            return "128x128x8" if wide and op == "gemm" else "64x64x8", why
        if dtype == "tf32x3":
            small = "32x64x32x4" if op == "gemm" else "64x64x32x3"
            return "128x64x16x4" if wide else small, why
        small = "32x64x64x4" if op == "gemm" else "64x64x64x3"
        return "128x128x32x4" if wide else small, why
    if op == "attention":
        short = 0 < head <= _SHORT_HEAD
        which = f"heads of {head}" if head else "heads of any size"
        end = "64 keys at a time" if short else "32 keys at a time for shared memory"
        return "64x64" if short else "64x32", f"{which}: {end}"
    if op == "copy":
        if permuted:
            return "32x32", "contiguous along different axes: transposed in shared memory"
        return "256x16", "contiguous along one axis before and after"
    return ("256x16", "16 bytes a thread") if op == "elementwise" else ("", "")
