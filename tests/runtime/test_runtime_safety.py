"""What must never crash: foreign plans, wrong shapes, many threads, unsuitable processors."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.runtime.cases import ADD, GELU_RESIDUAL
from tests.runtime.support import Case, dense, model, mutate, run_cases, run_worker, single, spec
from tracea_graph.ir import Expr
from tracea_graph.kernels.cpu.calls import CALLS
from tracea_graph.kernels.cpu.isa_levels import host_levels
from tracea_graph.kernels.cpu.library_build import build_library
from tracea_graph.kernels.cpu.plan_encoding import encode
from tracea_graph.kernels.program import LibraryContents
from tracea_graph.toolchain import Library

MUTATED = (
    "gemm_7x47x31_layout0_bias_0",
    "gemm_7x47x31_layout2_bias_0",
    "gemm_chain_37x72_layout0",
    "gemm_chain_67x72_layout2",
    "gemm_then_norm",
    "elementwise_bias",
    "embedding_int64_2x5",
    "attention_added",
    "attention_placed_chunk",
    "append_one_each",
    "blocks_chain",
    "guard_mixed",
)


@pytest.mark.parametrize("name", MUTATED)
def test_mutated_plans_never_crash(
    name: str, cases: dict[str, Case], library: Library, tmp_path: Path
) -> None:
    chance, case = random.Random(name), cases[name]
    for i in range(120):
        plan = mutate(encode(case.program), chance)
        onnx.save(model(case.program, library.domain, plan), tmp_path / f"{i:03}.onnx")
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    job = {"task": "mutants", "library": str(library.path), "folder": str(tmp_path)}
    refused, ran = run_worker(job)
    assert refused + ran == 120
    assert refused > 60


def test_eight_threads_give_the_same_bits(
    cases: dict[str, Case], library: Library, tmp_path: Path
) -> None:
    names = ("gemm_then_norm", "attention_boolean", "elementwise_large", "blocks_chain")
    for name in (*names, "attention_ordered_150_of_150", "attention_1_of_300"):
        folder, case = tmp_path / name, cases[name]
        folder.mkdir()
        onnx.save(model(case.program, library.domain), folder / "model.onnx")
        np.savez(folder / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
        job = {"task": "concurrent", "library": str(library.path), "folder": str(folder)}
        assert run_worker(job) is True


def answer(case: Case, library: Library, folder: Path, isa: str = "") -> Any:
    return run_cases([case], library.path, library.domain, folder, isa)[case.name]


@pytest.mark.parametrize(
    ("index", "shape", "words"),
    [
        (1, (2, 16, 16), "Input 1 has size 2 at axis 0, but must have 3 there"),
        (0, (21, 17), "Input 0 has size 17 at axis 1, but must have 16 there"),
        (2, (48, 1), "Input 2 has 2 axes, but must have 1"),
    ],
)
def test_wrong_shapes_are_refused(
    index: int,
    shape: tuple[int, ...],
    words: str,
    cases: dict[str, Case],
    library: Library,
    tmp_path: Path,
) -> None:
    case = cases["gemm_then_norm"]
    feeds = list(case.feeds)
    feeds[index] = np.zeros(shape, np.float32)
    program = case.program
    plan_inputs = tuple(
        replace(t, shape=tuple(f"d{i}{j}" for j in range(len(x.shape))))
        for i, (t, x) in enumerate(zip(program.inputs, feeds, strict=True))
    )
    place = tmp_path / case.name
    place.mkdir()
    loose = model(replace(program, inputs=plan_inputs), library.domain, encode(program))
    onnx.save(loose, place / "model.onnx")
    np.savez(place / "feeds.npz", **{f"x{i}": x for i, x in enumerate(feeds)})
    (text,) = run_worker({"task": "run", "library": str(library.path), "jobs": [str(place)]})
    assert words in text


def _sums(offsets: list[Expr]) -> Case:
    """x + x over and over, each call reading x at an offset; the last one counts."""
    whole = dense("input", 0, "m", 4)
    calls = tuple(
        CALLS.listed(
            "elementwise", (replace(whole, offset=o), whole, dense("output", 0, "m", 4)), chain=ADD
        )
        for o in offsets
    )
    program = single(calls[0], [spec("m", 4)], [spec("m", 4)], m=(0, 0))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    return Case("sums", replace(program, calls=calls), (x,), (2 * x,))


def test_more_sizes_than_are_shared_are_computed_all_the_same(
    library: Library, tmp_path: Path
) -> None:
    none = Expr("sub", (Expr("mul", ("m", 2)), Expr("add", ("m", "m"))))
    offsets = [Expr("mul", (none, k)) for k in range(2, 1200)]
    case = _sums([*offsets, none])
    (got,) = answer(case, library, tmp_path)
    assert np.array_equal(got, case.expected[0])


@pytest.mark.parametrize("calls", [1, 1200])
def test_a_size_without_a_value_is_an_error(calls: int, library: Library, tmp_path: Path) -> None:
    """Divided by zero, whether it is computed once for all calls or where it is read."""
    none = Expr("sub", (Expr("mul", ("m", 2)), Expr("add", ("m", "m"))))
    offsets = [Expr("mul", (none, k)) for k in range(2, 1 + calls)]
    last = Expr("mul", (Expr("floordiv", (Expr("add", ("m", 7)), none)), 0))
    assert "reaches outside its buffer" in answer(_sums([*offsets, last]), library, tmp_path)


def test_an_unknown_chain_is_named(library: Library, tmp_path: Path) -> None:
    chain = replace(GELU_RESIDUAL, results=(5,))
    views = (*(dense("input", i, 4, 4) for i in range(5)), dense("output", 0, 4, 4))
    program = single(
        CALLS.listed("elementwise", views, chain=chain), [spec(4, 4)] * 5, [spec(4, 4)]
    )
    case = Case("unknown", program, (np.zeros((4, 4), np.float32),) * 5)
    other = build_library(LibraryContents([case.type]), ("scalar",), tmp_path / "other.so")
    assert f"chain {chain.key:x}, which this library does not hold" in answer(
        case, other, tmp_path
    )


@pytest.mark.parametrize(
    ("name", "op"), [("gemm_then_norm", "gemm"), ("blocks_no_bias", "gemm_block_sparse")]
)
def test_a_missing_kernel_is_named(
    name: str, op: str, cases: dict[str, Case], tmp_path: Path
) -> None:
    """Of the second, the library lacks the host loop too."""
    case = cases[name]
    other = build_library(
        LibraryContents([case.type], ("norm",), ()), ("scalar",), tmp_path / "other.so"
    )
    assert f"This library holds no kernel for {op}" in answer(case, other, tmp_path)


def test_plans_of_another_type_are_refused(
    cases: dict[str, Case], library: Library, tmp_path: Path
) -> None:
    case, other = cases["gemm_then_norm"], cases["elementwise_large"]
    place = tmp_path / "model.onnx"
    onnx.save(model(case.program, library.domain, encode(other.program)), place)
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    (text,) = run_worker({"task": "run", "library": str(library.path), "jobs": [str(tmp_path)]})
    assert "not those of its op type" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((5, 0), ""),
        ((65, 512), ""),
        ((66, 0), "threads of a barrier is 66, but must lie in 0 .. 65"),
        ((5, -1), "rows of a barrier is -1"),
        ((5,), "ends too early"),
        ((5, 0, 0), "goes on after its end"),
    ],
)
def test_barriers_of_all_calls_are_read_and_checked(
    words: tuple[int, ...], why: str, cases: dict[str, Case], library: Library, tmp_path: Path
) -> None:
    case = cases["gemm_then_norm"]
    more = (5, 0) * (len(case.program.calls) - 1) + words
    magic, version, total, *rest = encode(case.program)
    plan = (magic, version, total + len(more), *rest, *more)
    onnx.save(model(case.program, library.domain, plan), tmp_path / "model.onnx")
    np.savez(tmp_path / "feeds.npz", **{f"x{i}": x for i, x in enumerate(case.feeds)})
    (text,) = run_worker({"task": "run", "library": str(library.path), "jobs": [str(tmp_path)]})
    assert why in text if why else text is None


def test_an_unknown_isa_names_the_choices(library: Library) -> None:
    job = {"task": "register", "library": str(library.path)}
    text = run_worker(job, isa="neon")
    assert "TRACEA_ISA is 'neon', but must be one of scalar, avx2, avxvnni, avx512, avx512" in text


def test_a_cap_below_every_level_is_an_error(cases: dict[str, Case], tmp_path: Path) -> None:
    if "avx2" not in host_levels():
        pytest.skip("this processor has no AVX2")
    types = [cases["gemm_then_norm"].type]
    only = build_library(
        LibraryContents(types, ("gemm", "norm"), ()), ("avx2",), tmp_path / "only.so"
    )
    job = {"task": "register", "library": str(only.path)}
    assert "holds kernels for avx2 and above, but here only scalar" in run_worker(job, "scalar")
    assert run_worker(job, "avx512") == ""


def test_shapes_are_inferred_without_false_equalities(
    library: Library, tmp_path: Path, cases: dict[str, Case]
) -> None:
    case = cases["attention_plain"]
    loose = model(case.program, library.domain)
    for output in loose.graph.output:
        output.type.tensor_type.ClearField("shape")
    path = tmp_path / "model.onnx"
    onnx.save(loose, path)
    job = {"task": "shapes", "library": str(library.path), "model": str(path)}
    ((batch, sequence, width),) = run_worker(job)
    assert width == 96 and batch != sequence
    assert all(name.startswith(library.domain) for name in (batch, sequence))


def test_a_computed_size_gets_a_name_of_its_own(library: Library, tmp_path: Path) -> None:
    rows = Expr("mul", ("b", "s"))
    flat = (dense("input", 0, rows, 4), dense("input", 1, rows, 4), dense("output", 0, rows, 4))
    call = CALLS.listed("elementwise", flat, chain=ADD)
    shapes = [spec("b", "s", 4), spec("b", "s", 4)]
    program = single(call, shapes, [spec(rows, 4)], b=(0, 0), s=(0, 1))
    path = tmp_path / "model.onnx"
    found = model(program, library.domain)
    found.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(found, path)
    job = {"task": "shapes", "library": str(library.path), "model": str(path)}
    ((first, width),) = run_worker(job)
    assert width == 4
    assert first.startswith(library.domain)
