"""What the documentation says is checked: links, paths, examples, commands, generated sections."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from docs.generate import SECTIONS, updated
from tests.test_recipes import RECIPES
from tests.tiny import ROOT, product
from tracea_graph import Options, optimize
from tracea_graph.cli.arguments import (
    join_subcommands,
    optimize_parser,
    options_from_args,
    tool_parser,
)
from tracea_graph.cli.config_file import insert_config_options
from tracea_graph.target import BACKENDS, tile_setting_names
from tracea_graph.tuning.schedule_hints import parse_hints

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "models").glob("*.md")),
        *sorted((ROOT / "kernels").rglob("*.md")),
    )
}
README = PAGES["README.md"]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)
KINDS = {
    "python": "run",
    "cpp": "compiled against onnxruntime's library and run",
    "csharp": "not run: there is no .NET here",
    "yaml": "read as settings",
    "text": "what something printed",
    "mermaid": "a generated picture",
    "diff": "a step of a recipe, see test_recipes.py",
    "console": "a step of a recipe, see test_recipes.py",
}
"""Languages of code blocks, and what is done with them."""
FOLDERS = ("tracea_graph", "passes", "kernels", "tests", "models", "docs")
X = np.random.default_rng(2).standard_normal((3, 32), np.float32)


def blocks(language: str) -> list[str]:
    return [
        text for page in PAGES.values() for word, text in BLOCK.findall(page) if word == language
    ]


# ---- links and paths -------------------------------------------------------------------


def prose(page: str) -> str:
    """A page without its code blocks, whose brackets are no links."""
    return re.sub(r"^    .*$", "", BLOCK.sub("", PAGES[page]), flags=re.M)


def anchors(text: str) -> set[str]:
    """Anchors that forges give to the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", BLOCK.sub("", text), re.M)
    plain = (re.sub(r"[`*]|\[|\]\([^)]*\)", "", head).strip().lower() for head in heads)
    return {re.sub(r"[^\w -]", "", head).replace(" ", "-") for head in plain}


BASENAMES = {path.name for path in (ROOT / "tests" / "backends").iterdir()}
"""Files of the example backend, which pages name without their folder."""
LINKS = [
    (page, target)
    for page in PAGES
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))
    if not target.startswith(("https://", "http://"))
]
"""Pages and their relative links."""


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_links_lead_somewhere(page: str, target: str) -> None:
    name, _, anchor = target.partition("#")
    path = (ROOT / page).parent / name if name else ROOT / page
    assert path.exists()
    if anchor:
        assert anchor in anchors(path.read_text(encoding="utf-8"))


def test_anchors_are_those_of_forges() -> None:
    page = "# A `b` and [c](d.md)\n## Don't: e_f, g–h\n```text\n# no\n```\n"
    assert anchors(page) == {"a-b-and-c", "dont-e_f-gh"}


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set[str](), ["README.md"]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        for source, target in LINKS:
            path = ((ROOT / page).parent / target.partition("#")[0]).resolve()
            if source == page and path.suffix == ".md":
                found = path.relative_to(ROOT).as_posix()
                waiting += [found] if found not in reached else []
    assert reached == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_pages_name_exist(page: str) -> None:
    home, made = (ROOT / page).parent, re.findall(r"^```\w+ file=(\S+)$", PAGES[page], re.M)
    for words in re.findall(r"`([^`\n]+)`", prose(page)):
        for word in re.findall(r"^[\w./*-]+\.(?:py|h|md|cpp|in|ipynb|json)$|^[\w./-]+/$", words):
            ours = word.split("/")[0] in FOLDERS or word.split("/")[0] in os.listdir(home)
            if ours or word.endswith((".py", ".h")):
                found = (
                    word in made,
                    any(home.glob(word)),
                    any(ROOT.glob(word)),
                    word in BASENAMES,
                )
                assert any(found), word


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_pages_run_exist(page: str) -> None:
    for word in re.findall(r"python -m ((?:models|tests|docs|tracea_graph)[\w.]*)", PAGES[page]):
        path = ROOT / word.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), word


def test_terms_of_the_glossary_stand_where_it_says() -> None:
    rows = re.findall(r"^\| [^|]+ \| (.+?) \|", PAGES["docs/glossary.md"], re.M)[2:]
    assert len(rows) > 20
    for where in rows:
        assert re.fullmatch(r"(`\w+` in )?`[\w./]+`(, `[\w./]+`)?", where), where
        if " in " in where:
            name, path = re.findall(r"`([^`]+)`", where)
            text = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^(class |def )?{name}\b", text, re.M), where


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 900


def test_results_say_when_and_on_what_they_were_measured() -> None:
    _, *sections = re.split(r"^## ", PAGES["models/RESULTS.md"], flags=re.M)
    assert len(sections) >= 9
    for section in sections:
        assert "2026" in section, section.partition("\n")[0]


# ---- generated sections ----------------------------------------------------------------


@pytest.mark.parametrize(("page", "name"), SECTIONS)
def test_generated_sections_are_current(
    page: str, name: str, request: pytest.FixtureRequest
) -> None:
    text = updated(page, name)
    if request.config.getoption("--update-golden"):
        (ROOT / page).write_text(text, encoding="utf-8")
    assert (ROOT / page).read_text(encoding="utf-8") == text, "run make docs"


def test_the_reference_names_every_level_that_can_cap_kernels() -> None:
    caps = r"\|".join(level for backend in BACKENDS for level in backend.caps)
    assert f"`TRACEA_ISA={caps}`" in PAGES["docs/cli.md"]


# ---- examples --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``model.onnx`` and its result, as the examples call them."""
    folder = tmp_path_factory.mktemp("examples")
    model = onnx.load(product(folder / "model.onnx"))
    model.graph.node[0].name = "/encoder/layer.0/MatMul"
    onnx.save(model, folder / "model.onnx")
    optimize(folder / "model.onnx", Options(keep="all", verify=False, target="cpu:scalar"))
    return folder


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    kinds = {info.split()[0] for page in PAGES.values() for info, _ in BLOCK.findall(page)}
    assert kinds == KINDS.keys()
    steps = {
        p for p, text in PAGES.items() if re.search(r"^```(?:diff|console|\w+ file=)", text, re.M)
    }
    assert {Path(page).name for page in steps} == set(RECIPES)


PYTHON = dict.fromkeys(blocks("python"))
_EACH = """
import contextlib, io, json, sys, traceback
said = {}
for code, text in json.load(sys.stdin).items():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            exec(text, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=out)
    said[code] = out.getvalue()
json.dump(said, sys.stdout)
"""


def runnable(code: str) -> str:
    """A block that takes little time, and prints "ran" or the shape of an answer last."""
    code = code.replace('tg.optimize("model.onnx")', 'tg.optimize("model.onnx", OPTIONS)')
    target = "" if "target=" in code else "target='cpu:scalar', "
    code = code.replace("tg.Options(", f"tg.Options(keep='all', verify=False, {target}")
    options = "keep='all', verify=False, target='cpu:scalar'"
    setup = f"import tracea_graph\nOPTIONS = tracea_graph.Options({options})\n"
    answer = "import numpy\nprint(session.run(None, {'x': numpy.ones((3, 32), 'f4')})[0].shape)"
    return "\n".join((setup, code, answer if "session = " in code else "print('ran')"))


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, str]:
    """What each block of Python prints, or why it fails: one process imports the package once."""
    done = subprocess.run(
        [sys.executable, "-c", _EACH], input=json.dumps({c: runnable(c) for c in PYTHON}),
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.compiler
@pytest.mark.parametrize("code", PYTHON)
def test_python_blocks_run(code: str, printed: dict[str, str]) -> None:
    last = "(3, 48)\n" if "session = " in code else "ran\n"
    assert printed[code].endswith(last), printed[code]


@pytest.mark.compiler
@pytest.mark.parametrize("code", blocks("cpp"))
def test_cpp_blocks_run_on_the_wheels_library(code: str, folder: Path, tmp_path: Path) -> None:
    home = Path(onnxruntime.__file__).parent / "capi"
    (library,) = home.glob("libonnxruntime.so.*")
    include, _, body = code.partition("\n\n")
    numbers = ", ".join(repr(float(v)) + "f" for v in X.ravel())
    (tmp_path / "main.cpp").write_text(
        f"{include}\nint main() {{\n{body}\n"
        f"for (float y : session.run({{{numbers}}}, {{3, 32}}, 3 * 48))\n"
        '  std::printf("%.9g\\n", y);\n}\n'
    )
    shim = ROOT / "tests" / "deploy"
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    subprocess.run(
        ["g++", "-std=c++17", f"-I{shim}", "main.cpp", "-o", "main", str(library),
         f"-Wl,-rpath,{tmp_path}:{home}"],
        cwd=tmp_path, check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "main"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.array(done.stdout.split(), np.float32).reshape(3, 48)
    wanted = onnxruntime.InferenceSession(folder / "model.onnx").run(None, {"x": X})[0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_blocks_are_settings(text: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    args = optimize_parser().parse_args(
        insert_config_options(["model.onnx", "--config", str(path)])
    )
    options = options_from_args(args)
    assert (
        options.threads == (1, 2) and len(parse_hints(options.patterns, tile_setting_names())) == 3
    )


# ---- commands --------------------------------------------------------------------------


def command_lines() -> list[str]:
    """Indented lines and code in backticks that call one of the two commands."""
    lines = list[str]()
    for page, text in PAGES.items():
        lines += re.findall(r"^    (tracea(?:-optimize)? [^#\n…]+?) *(?:#.*)?$", text, re.M)
        lines += re.findall(r"`(tracea(?:-optimize)? [^`…]+ -[^`…]+)`", prose(page))
    return sorted({re.sub(r"\[[^]]*\]", "", " ".join(line.split())) for line in lines})


@pytest.mark.parametrize("line", command_lines())
def test_command_lines_are_understood(line: str) -> None:
    program, *args = shlex.split(line)
    if not any(".onnx" in word for word in args):
        args += {"bench": ["m.onnx"], "tracea-optimize": ["m.onnx"]}.get(
            program if program != "tracea" else args[0], []
        )
    parser = tool_parser() if program == "tracea" else optimize_parser()
    assert parser.parse_args(join_subcommands(args))


def test_pages_show_the_commands_there_are() -> None:
    shown = {shlex.split(line)[1] for line in command_lines() if line.startswith("tracea ")}
    assert shown >= {"explain", "inspect", "bench", "verify", "strip", "doctor", "tune", "cache"}


@pytest.mark.parametrize("page", [p for p in PAGES if p.startswith(("README", "docs/"))])
def test_options_that_pages_name_exist(page: str) -> None:
    known = set(re.findall(r"--[a-z][a-z-]+", PAGES["docs/cli.md"]))
    named = set[str]()
    for words in re.findall(r"`(--?[a-z][^`]*)`", prose(page)):
        named |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", words))
    if page != "docs/CHANGELOG.md":  # which names what was
        assert named <= known


def test_make_targets_that_pages_name_exist() -> None:
    named = {
        target
        for page in PAGES.values()
        for target in re.findall(r"(?:^    |`)make ([a-z-]+)", page, re.M)
    }
    assert named >= {"demo", "test", "check", "docs"}
    for target in named:
        done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
