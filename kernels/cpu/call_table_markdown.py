"""The table of kernel calls in ``kernels/cpu/CALLS.md``, from their records."""

from __future__ import annotations

from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.schema import Attribute, Calls, CallSchema, Operand

__all__ = ["call_table"]

_CHAINS = {"none": "–", "required": "required", "epilogue": "behind", "prologue": "before"}


def call_table(calls: Calls = CALLS) -> str:
    """Return a Markdown table with a row per call.

    Its columns are operands with shapes and types, attributes with ranges, chains, and tiling by
    rows.
    """
    rows = (_row(schema) for schema in calls.values())
    head = "| call | operands → results | attributes | chain | by rows |\n|---|---|---|---|---|\n"
    return head + "".join(rows)


def _row(schema: CallSchema) -> str:
    read = " · ".join(_operand(o) for o in schema.operands if not o.written)
    made = " · ".join(_operand(o) for o in schema.operands if o.written)
    attributes = " · ".join(map(_attribute, schema.attributes)) or "–"
    tiled = "yes" if schema.row_tiled else "–"
    cells = (f"`{schema.name}`", f"{read} → {made}".strip(), attributes, _CHAINS[schema.chain])
    return f"| {' | '.join((*cells, tiled))} |\n"


def _operand(operand: Operand) -> str:
    """``x [… M K] bf16``: ``?`` marks an optional operand, dots one of several views."""
    shape = " ".join("…" if axis == "..." else axis for axis in operand.shape)
    types = "" if operand.types in (("f32",), ("chain",)) else " " + "/".join(operand.types)
    many = " …" if operand.many else ""
    mark = "?" if operand.optional else ""
    return f"{operand.name}{mark}{many} `[{shape}]`{types}".replace("|", "\\|")


def _attribute(attribute: Attribute) -> str:
    name = attribute.name if attribute.count else f"{attribute.name} …"
    name += f" ×{attribute.count}" if attribute.count > 1 else ""
    if attribute.words is not None:
        return f"{name}: {', '.join(map(str, attribute.words))}"
    if attribute.boolean or attribute.real:
        return f"{name}?" if attribute.boolean else f"{name}: real"
    if attribute.as_bits:
        return f"{name}: set"
    return f"{name}: {_bound(attribute.low)} … {_bound(attribute.high)}"


def _bound(value: float) -> str:
    """Large limits as powers of two."""
    whole = int(value)
    power = (whole + 1).bit_length() - 1
    if whole < 1 << 12:
        return str(whole)
    return f"2^{whole.bit_length() - 1}" if not whole & (whole - 1) else f"2^{power} − 1"
