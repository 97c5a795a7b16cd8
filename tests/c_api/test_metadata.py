"""What is known about kernels: from the tables of variants, and from their machine code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tracea_graph.cli.main import main
from tracea_graph.commands.build_kernel_library import KernelLibrary, list_kernels, show_kernel
from tracea_graph.errors import UsageError

TARGET = "cpu:scalar"


def test_every_variant_is_listed_once() -> None:
    found = list_kernels()
    assert len({one.name for one in found}) == len(found) > 20
    gemm = next(one for one in found if one.op == "gemm" and one.level == "scalar")
    assert gemm.epilogue == "bias + chain"
    assert gemm.fragments["mr"]
    assert gemm.symbols[0].startswith("tracea_f32_gemm_")
    assert gemm.launch.threads == 1
    conv = next(one for one in found if one.op == "conv" and one.dtype == "f32")
    assert conv.epilogue == "bias + add + clamp + chain"
    assert {one.op for one in list_kernels(op="gemm")} == {"gemm"}
    with pytest.raises(UsageError, match="no kernels for 'norms'; did you mean"):
        list_kernels(op="norms")


@pytest.mark.compiler
@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_resources_are_read_from_the_object() -> None:
    name = next(one.name for one in list_kernels(TARGET) if one.op == "norm")
    found = show_kernel(name, TARGET)
    assert found.resources is not None
    assert 200 < found.resources.code_bytes < 100_000
    assert 2 <= found.resources.registers <= 16
    assert found.resources.stack_bytes < 1 << 16
    with pytest.raises(UsageError, match="did you mean"):
        show_kernel(name[:-1], TARGET)


@pytest.mark.compiler
def test_kernels_are_shown_as_yaml_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "list", "norm", "--target", TARGET]) == 0
    assert "norm" in capsys.readouterr().out
    name = next(one.name for one in list_kernels(TARGET) if one.op == "norm")
    assert main(["kernels", "show", name, "--target", TARGET]) == 0
    facts = yaml.safe_load(capsys.readouterr().out)
    assert main(["kernels", "show", name, "--target", TARGET, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == facts
    assert facts["launch"]["task"] == "a chunk of rows"


def test_a_library_comes_with_the_facts_of_its_kernels(built: KernelLibrary) -> None:
    facts = json.loads(built.path.with_suffix(".json").read_text())
    ops = {one["op"] for one in facts["kernels"]}
    assert {"gemm", "conv", "attention", "norm"} <= ops
    assert {one["level"] for one in facts["kernels"]} == {*built.levels}
    if shutil.which("objdump"):
        assert all(one["resources"]["code_bytes"] > 0 for one in facts["kernels"])


@pytest.mark.compiler
def test_the_command_says_what_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("kernels", "build", "--ops", "norm", "--target", TARGET, "-o", str(tmp_path))
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ops"] == ["norm"]
    assert facts["levels"] == ["scalar"]
    assert Path(facts["library"]).parent == tmp_path / "lib"
    assert {p.name for p in Path(facts["include"]).iterdir()} == {
        "tracea.h", "tracea.hpp", "tsr.h"
    }  # fmt: skip
    assert (tmp_path / "lib" / "libtracea_runtime.so").exists()
    assert main(["kernels", "build", "--ops", "norms", "-o", str(tmp_path)]) == 2
    assert "did you mean norm?" in capsys.readouterr().err
