"""A rule that looks at a site and does nothing says why.

A rule may return without a word only where it has not looked yet: in a guard that asks nothing but
what kind of region it was given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path
    for folder in ("passes", "kernels/cpu/phases", "kernels/gpu")
    for path in (ROOT / folder).rglob("*.py")
    if "def propose" in path.read_text("utf-8")
)
KIND = {"region", "params", "self", "isinstance", "len", "attribute", "is_depthwise"}
"""What a guard may name, beside types and constants of the module."""
READERS = {
    "_alone", "_plain", "_read_cut", "_read_pick", "_reads_channels_last", "read_chain",
    "read_operation", "read_selection",
}  # fmt: skip
"""Functions that read a region as the kind of operation a rule is for, None for another kind."""


def silent(function: ast.FunctionDef) -> Iterator[int]:
    """Yield the lines of returns that follow neither a proposal or a miss nor a guard by kind."""
    for block in blocks(function):
        for before, statement in zip((None, *block), block, strict=False):
            if not isinstance(statement, ast.Return) or statement.value is not None:
                continue
            told = isinstance(before, ast.Expr) and isinstance(before.value, ast.Yield)
            if not told and not (len(block) == 1 and is_guard(function, block)):
                yield statement.lineno


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield every list of statements inside a function."""
    for inner in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            found = getattr(inner, name, None)
            if isinstance(found, list):
                yield found


def is_guard(function: ast.FunctionDef, block: list[ast.stmt]) -> bool:
    """Return whether a block belongs to an ``if`` of the function's own level that asks only for
    the kind of region."""
    known = set(KIND)
    for statement in function.body:
        if isinstance(statement, ast.Assign) and of_kind(statement.value, known):
            known |= {n.id for t in statement.targets for n in ast.walk(t) if hasattr(n, "id")}
        if isinstance(statement, ast.If) and statement.body is block:
            return of_kind(statement.test, known)
    return False


def of_kind(expression: ast.expr, known: set[str]) -> bool:
    """Return whether an expression reads nothing but a region's kind.

    Names of types and constants do not count, nor what :data:`READERS` or ``graph.opset`` are
    given.
    """
    given = set[int]()
    for node in ast.walk(expression):
        if isinstance(node, ast.Attribute) and node.attr == "opset":
            given.add(id(node.value))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in READERS:
            given |= {id(n) for n in ast.walk(node)}
    bound = {
        n.target.id
        for n in ast.walk(expression)
        if isinstance(n, ast.comprehension | ast.NamedExpr) and isinstance(n.target, ast.Name)
    }
    names = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name) and id(n) not in given}
    return {n for n in names - bound if not n.lstrip("_")[:1].isupper()} <= known


@pytest.mark.parametrize("path", FILES, ids=[str(p.relative_to(ROOT)) for p in FILES])
def test_no_return_is_silent(path: Path) -> None:
    found = {
        f"{holder.name}, line {line}"
        for holder in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(holder, ast.ClassDef)
        for member in holder.body
        if isinstance(member, ast.FunctionDef) and member.name == "propose"
        for line in silent(member)
    }
    assert not found
