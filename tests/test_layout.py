"""The shape of the source tree: packages, import directions, and what no module may do."""

from __future__ import annotations

import ast
import fnmatch
import importlib
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tracea_graph.rewrite import PatternPass, Rule

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
HOMES = {"tracea_graph.kernels": ROOT / "kernels", "tracea_graph.passes": ROOT / "passes"}

# A part may import those of its own line and of the lines above it.  Modules beside api.py rank as
# api.py does, and a backend is a part of its own.
RANKS = (
    ("errors", "config", "json_documents", "reason_codes", "ir", "temporary_files", "version"),
    ("ttg",),
    ("ops", "rewrite"),
    ("kernels",),
    ("passes",),
    ("onnx_io", "hardware", "policy", "tuning", "toolchain", "check", "compress"),
    ("cpu", "gpu"),
    ("views",),
    ("api",),
    ("torch",),
    ("cli", "__main__"),
)
CONFINED = {
    "onnx": {"onnx_io", "check"},
    "onnx_graphsurgeon": {"onnx_io"},
    "onnxruntime": {"onnx_io", "check", "api", "torch"},  # onnx_io folds constants with it
    "optuna": {"tuning"},
    "jinja2": {"cpu", "gpu", "views"},
    "cuda": {"gpu", "hardware"},
    "torch": {"torch"},
    "onnxscript": set[str](),
    "pickle": set[str](),
}
BACKENDS = ("cpu", "gpu")
"""Folders of ``kernels/``, a backend each."""
WORDS = re.compile(r"avx|amx|panel|vnni|xmm|zmm|nchw16|vpdp", re.IGNORECASE)
"""Words of one processor's, which nobody but its backend says."""
LONGEST_MODULE, LONGEST_FUNCTION = 600, 70
"""Lines from which a module or a function is to be looked at: is it one idea?"""


def modules() -> dict[str, Path]:
    """Every module of the package by its import name."""
    found: dict[str, Path] = {}
    for home, prefix in (
        (ROOT / "tracea_graph", "tracea_graph"),
        *((p, n) for n, p in HOMES.items()),
    ):
        for path in sorted(home.rglob("*.py")):
            inside = path.relative_to(home).with_suffix("").parts
            if prefix == "tracea_graph" and inside[0] in ("kernels", "passes"):
                continue  # seen through a symlink
            found[".".join((prefix, *inside)).removesuffix(".__init__")] = path
    return found


MODULES = modules()
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py"}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def part(name: str) -> str:
    """The first word after ``tracea_graph``; empty for the package itself.

    A backend is a part of its own beside what all of them share.
    """
    words = (*name.split("."), "", "")
    return words[2] if words[1] == "kernels" and words[2] in BACKENDS else words[1]


def rank(name: str) -> int:
    ranks = {word: i for i, line in enumerate(RANKS) for word in line}
    return ranks.get(part(name), ranks["api"])


def imports(name: str) -> Iterator[str]:
    """Full names of the modules a module imports, anywhere in it."""
    package = name if name in PACKAGES else name.rpartition(".")[0]
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            source = ".".join([*(base if node.level else []), node.module or ""]).strip(".")
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in MODULES else source


def edges(asking: bool = False) -> Iterator[tuple[str, str]]:
    """Who imports whom; questions to a backend are left out unless ``asking``."""
    for name in MODULES:
        for target in imports(name):
            asks = part(target) in BACKENDS and part(name) not in BACKENDS
            if target.startswith("tracea_graph") and (asking or not asks):
                yield name, target


def test_the_package_list_names_every_package_directory() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(PACKAGES)
    holding_code = {path.parent for path in MODULES.values()}
    assert len(holding_code) == len(PACKAGES), "a directory with modules lacks __init__.py"


def test_the_package_data_globs_cover_every_data_file() -> None:
    data = SETUPTOOLS["package-data"]
    homes = {MODULES[package].parent: package for package in PACKAGES}
    for path in (p for home in (ROOT / "tracea_graph", *HOMES.values()) for p in home.rglob("*")):
        if path.is_file() and path.suffix not in (".py", ".pyc", ".md"):
            home = next(folder for folder in path.parents if folder in homes)
            name, globs = str(path.relative_to(home)), data.get(homes[home], [])
            assert any(fnmatch.fnmatch(name, g) for g in globs), f"{path} is not shipped"


@pytest.mark.parametrize("name", sorted(HOMES))
def test_both_ways_to_a_top_level_package_meet(name: str) -> None:
    link = ROOT / name.replace(".", "/")
    assert not link.is_symlink() or link.readlink() == Path("..") / link.name
    assert SETUPTOOLS["package-dir"][name] == link.name
    found = importlib.import_module(name).__file__
    assert found is not None
    assert Path(found).resolve() == HOMES[name] / "__init__.py"


def test_imports_point_one_way() -> None:
    assert [(a, b) for a, b in edges() if part(a) and rank(b) > rank(a)] == []


def test_only_a_backend_itself_knows_its_hardware() -> None:
    users = {a for a, b in edges(asking=True) if part(b) in BACKENDS and part(a) != part(b)}
    assert users == {"tracea_graph.target", "tracea_graph.target_names"}


def test_only_a_backend_speaks_of_its_hardware() -> None:
    found = {
        name
        for name, path in MODULES.items()
        if part(name) not in BACKENDS and WORDS.search(path.read_text(encoding="utf-8"))
    }
    assert found == set()


def test_parts_do_not_import_each_other_in_a_circle() -> None:
    users: dict[str, set[str]] = {}
    for a, b in edges():
        if part(a) and part(a) != part(b):
            users.setdefault(part(a), set()).add(part(b))
    while leaves := {p for used in users.values() for p in used} - users.keys():
        users = {a: used - leaves for a, used in users.items()}
        users = {a: used for a, used in users.items() if used}
    assert users == {}


def test_files_do_not_import_each_other_in_a_circle() -> None:
    """A package and the files in it may."""
    known = nx.DiGraph(
        (a, b) for a, b in edges(asking=True) if b in MODULES and not a.startswith(f"{b}.")
    )
    assert list(nx.simple_cycles(known)) == []


def test_only_types_and_errors_are_imported_everywhere() -> None:
    users = Counter(b for _, b in {*edges(asking=True)})
    many = {name for name, count in users.items() if count > len(MODULES) / 3}
    assert many <= {"tracea_graph.ir", "tracea_graph.errors"}


def test_nothing_inside_imports_the_package_itself() -> None:
    assert [(a, b) for a, b in edges() if part(a) and b == "tracea_graph"] == []


def test_large_libraries_are_imported_where_they_belong() -> None:
    for name in MODULES:
        own = "api" if rank(name) == rank("tracea_graph.api") else part(name)
        for top in {target.split(".")[0] for target in imports(name)}:
            assert own in CONFINED.get(top, {own}), f"{name} imports {top}"


def test_top_level_names_are_imported_through_the_package_only() -> None:
    stray = {
        (name, t)
        for name in MODULES
        for t in imports(name)
        if t.split(".")[0] in ("passes", "kernels")
    }
    assert stray == set()


def test_no_module_hides_one_of_the_standard_library() -> None:
    """Neither at the top nor in check/, which Python puts first on the path of a worker."""
    words = {n.rpartition(".")[2] for n in MODULES if n.count(".") == 1 or part(n) == "check"}
    assert words & sys.stdlib_module_names == set()


def test_pytest_enters_every_folder_of_tests(request: pytest.FixtureRequest) -> None:
    """By default it passes by folders of some names."""
    patterns = request.config.getini("norecursedirs")
    folders = {file.parent.name for file in (ROOT / "tests").rglob("test_*.py")}
    assert [name for name in folders if any(fnmatch.fnmatch(name, p) for p in patterns)] == []


def test_every_module_says_what_it_is_for() -> None:
    assert [name for name in MODULES if not ast.get_docstring(tree(name))] == []


def test_only_the_command_line_prints() -> None:
    assert [name for name in MODULES if part(name) != "cli" and "print" in calls(name)] == []


def test_text_files_do_not_depend_on_the_locale() -> None:
    """Sources have signs beyond ASCII, which another locale's encoding cannot hold."""
    found = [
        f"{name}:{node.lineno}"
        for name in MODULES
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("read_text", "write_text")
        and len(node.args) < (1 if node.func.attr == "read_text" else 2)
        and not any(keyword.arg == "encoding" for keyword in node.keywords)
    ]
    assert not found


def calls(name: str) -> set[str]:
    found = (node.func for node in ast.walk(tree(name)) if isinstance(node, ast.Call))
    return {func.id for func in found if isinstance(func, ast.Name)}


def test_modules_and_functions_stay_readable() -> None:
    assert [n for n, path in MODULES.items() if lines(path) > LONGEST_MODULE] == []
    assert [
        (n, f.name) for n in MODULES for f in functions(n) if length(f) > LONGEST_FUNCTION
    ] == []


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def functions(name: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef)]


def length(function: ast.FunctionDef) -> int:
    return (function.end_lineno or 0) - function.lineno + 1


def kebab(name: str) -> str:
    """``ConvBf16`` and ``CONV_BF16`` as ``conv-bf16``."""
    words = name.replace("_", "-") if name.isupper() else re.sub(r"(?<!^)(?=[A-Z])", "-", name)
    return words.lower()


def rules() -> Iterator[tuple[str, str, str, bool]]:
    """The module, the class or constant, and the name of every rule; whether it is a pattern."""
    for name in MODULES:
        if not re.match(r"tracea_graph\.(passes|kernels\.\w+\.phases)\b", name):
            continue
        for key, value in vars(importlib.import_module(name)).items():
            if isinstance(value, Rule):
                yield name, key, value.name, True
            elif isinstance(value, type) and hasattr(value, "propose") and "Pass" not in key:
                yield name, key, getattr(value, "name", ""), issubclass(value, PatternPass)


def test_a_rule_is_named_as_its_class_or_constant_is() -> None:
    found = list(rules())
    assert len({rule for _, _, rule, _ in found}) > 100
    assert not [one for one in found if one[2] != kebab(one[1])]


def test_most_rules_are_patterns() -> None:
    patterns = {rule: pattern for _, _, rule, pattern in rules()}
    assert 2 * sum(patterns.values()) > len(patterns)


DOUBLE_NAMES = {"Target", "Tile"}
"""Class names that two modules still define; the list only gets shorter."""


def test_no_two_modules_define_a_class_of_one_name() -> None:
    """Nor does the example that a recipe copies into the package."""
    copied = ast.parse((ROOT / "tests" / "backends" / "plain.py").read_text(encoding="utf-8"))
    found: dict[str, set[str]] = {}
    modules = {name: tree(name) for name in MODULES}
    for name, module in {**modules, "tracea_graph.kernels.plain.backend": copied}.items():
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).add(name)
    assert {name for name, where in found.items() if len(where) > 1} == DOUBLE_NAMES


def test_every_listed_name_exists() -> None:
    wrong = {name: listed(name) - bound(name) for name in MODULES}
    assert {name: names for name, names in wrong.items() if names} == {}


def listed(name: str) -> set[str]:
    """The names in a module's ``__all__``."""
    return {
        str(ast.literal_eval(element))
        for node in tree(name).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        for element in getattr(node.value, "elts", [])
    }


def bound(name: str) -> set[str]:
    """The names a module defines or imports."""
    found: set[str] = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_the_version_has_one_source() -> None:
    attribute = SETUPTOOLS["dynamic"]["version"]["attr"]
    module, _, name = attribute.rpartition(".")
    version = getattr(importlib.import_module(module), name)
    text = "\n".join(path.read_text(encoding="utf-8") for path in MODULES.values())
    assert text.count(f'"{version}"') == 1
