"""Which library belongs to a model: one function says so to everything that runs one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import parser

from tracea_graph import api
from tracea_graph.commands.bench import model_subject
from tracea_graph.commands.verify import verify_models
from tracea_graph.errors import UsageError
from tracea_graph.onnx_io import library_of
from tracea_graph.options import Options

LIBRARY = b"the library"
OTHER = b"another model's"
TEXT = """
<ir_version: 8, opset_import: ["" : 17, "tracea.f123456789" : 1]>
m (float[4] x) => (float[4] y) { y = tracea.f123456789.FusedElementwise_a1 (x) }
<domain: "tracea.f123456789", opset_import: ["" : 17]>
FusedElementwise_a1 (x) => (y) { y = Relu (x) }
"""
PLAIN = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[4] x) => (float[4] y) { y = Relu (x) }
"""

Use = Callable[[Path], object]


def saved(folder: Path, *, wanted: bytes | None, bodies: bool = True) -> Path:
    """A result with one custom operator that says it was written with a library of ``wanted``."""
    model, path = parser.parse_model(TEXT), folder / "m.onnx"
    if wanted is not None:
        digest = hashlib.sha256(wanted).hexdigest()
        model.metadata_props.add(key="tracea.library.sha256", value=digest)
    if not bodies:
        del model.functions[:]
    onnx.save(model, path)
    return path


def verified(path: Path) -> object:
    original = path.with_name("original.onnx")
    onnx.save(parser.parse_model(PLAIN), original)
    return verify_models(original, path, Options())


USES = [
    pytest.param(library_of, id="library_of"),
    pytest.param(verified, id="verify"),
    pytest.param(model_subject, id="bench"),
    pytest.param(api.session, id="session"),
]


@pytest.mark.parametrize("use", USES)
def test_a_library_of_another_model_is_refused(use: Use, tmp_path: Path) -> None:
    path = saved(tmp_path, wanted=LIBRARY)
    path.with_suffix(".so").write_bytes(OTHER)
    with pytest.raises(UsageError, match=r"m\.so is not the library m\.onnx was written with"):
        use(path)


@pytest.mark.parametrize("use", USES)
def test_a_library_the_model_knows_nothing_of_is_not_loaded(use: Use, tmp_path: Path) -> None:
    """It would fail to load, and so end whatever loads it."""
    path = saved(tmp_path, wanted=None)
    path.with_suffix(".so").write_bytes(OTHER)
    assert library_of(path) is None
    use(path)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("said", [LIBRARY, None])
def test_a_model_without_bodies_and_library_is_refused(
    use: Use, said: bytes | None, tmp_path: Path
) -> None:
    path = saved(tmp_path, wanted=said, bodies=False)
    with pytest.raises(UsageError, match=r"m\.onnx cannot run without its library"):
        use(path)


def test_its_own_is_found_beside_the_model_and_by_name(tmp_path: Path) -> None:
    path, own, elsewhere = saved(tmp_path, wanted=LIBRARY), tmp_path / "m.so", tmp_path / "else.so"
    assert library_of(path) is None
    elsewhere.write_bytes(LIBRARY)
    assert library_of(path, elsewhere) == elsewhere
    own.write_bytes(LIBRARY)
    assert library_of(path) == own


def test_what_is_named_must_be_there_and_be_the_models(tmp_path: Path) -> None:
    path, other = saved(tmp_path, wanted=LIBRARY), tmp_path / "other.so"
    with pytest.raises(UsageError, match=r"the library .*other\.so does not exist"):
        library_of(path, other)
    other.write_bytes(OTHER)
    with pytest.raises(UsageError, match="is not the library"):
        library_of(path, other)


def test_a_model_that_is_no_result_takes_the_library_it_is_given(tmp_path: Path) -> None:
    path, named = tmp_path / "plain.onnx", tmp_path / "custom.so"
    onnx.save(parser.parse_model(PLAIN), path)
    for place in (named, path.with_suffix(".so")):
        place.write_bytes(OTHER)
    assert library_of(path) is None
    assert library_of(path, named) == named
