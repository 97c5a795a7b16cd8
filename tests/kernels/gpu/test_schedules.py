"""Tiles of GPU kernels as schedules: what plans make of them, and how the tuner times them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernels.gpu.test_probes import H100, TimedDriver
from tracea_graph import Options, ProblemDescriptor
from tracea_graph.commands.autotuner import tune_problem
from tracea_graph.config import Environment
from tracea_graph.errors import WorkerError
from tracea_graph.ir import DType, evaluate
from tracea_graph.kernels.gpu import device_main, machine_model, plan_encoding
from tracea_graph.kernels.gpu import schedules as spaces
from tracea_graph.kernels.gpu.architecture import ARCHITECTURES
from tracea_graph.kernels.gpu.backend import GPU
from tracea_graph.kernels.gpu.calls import CALLS
from tracea_graph.kernels.gpu.kernel_selection import kernels_of, tile_numbers, variants_of
from tracea_graph.kernels.gpu.library_build import sources_of as sources_for_levels
from tracea_graph.kernels.gpu.schedule import TILE_SCHEDULES, TileSchedule
from tracea_graph.kernels.gpu.schedules import ATTENTION_SEEDS, SEEDS, event_fixture
from tracea_graph.kernels.gpu.schedules.attention_problem import AttentionProblem, attention_of
from tracea_graph.kernels.gpu.schedules.conv_problem import ConvolutionProblem, conv_of
from tracea_graph.kernels.gpu.schedules.event_fixture import (
    DeviceWorker,
    EventFixture,
    request_for,
    sources_of,
)
from tracea_graph.kernels.gpu.schedules.matmul_problem import (
    MatmulProblem,
    TiledProblem,
    matmul_of,
    tiles_of,
    variant_run,
)
from tracea_graph.kernels.gpu.variants import VARIANTS
from tracea_graph.kernels.program import Buffer, Call, LibraryContents, View
from tracea_graph.ops.chain import Chain, Step
from tracea_graph.tuning import (
    CacheEntry,
    Case,
    Tuner,
    TuningCache,
    TuningOptions,
    Workload,
    tune,
    with_schedules,
)
from tracea_graph.tuning.cache_key import result_cache_key
from tracea_graph.tuning.candidate_selection import candidates_to_measure
from tracea_graph.tuning.serialization import case_from_json, case_to_json, schedule_to_json
from tracea_graph.tuning.tuning_problem import default_schedule

SPACE = GPU.schedule_space
OFTEN = ("sm_75", "sm_80", "sm_90a")
"""The oldest architecture, one with nearly all that later ones have, and Hopper."""
assert SPACE is not None
GELU = Chain(("full",), (Step("gelu", (0,)),), (1,))
PLAIN = MatmulProblem(768, 3072, "f16")
ADDED = Chain(
    ("full", "full", "full"), (Step("add", (0, 1)), Step("mul", (3, 2)), Step("relu", (4,))), (5,),
    (DType.F32, DType.F16, DType.F32), (DType.F16,),
)  # fmt: skip
IMAGES = ConvolutionProblem(
    (14, 14, 256), (14, 14, 256), (3, 3), "f16", pads=(1, 1), epilogue=ADDED,
    reads=("full", "row"),
)  # fmt: skip
PROBLEMS: tuple[TiledProblem, ...] = (
    PLAIN,
    MatmulProblem(384, 1152, "f16", norm="layer"),
    MatmulProblem(384, 1536, "bf16", norm="rms", bias=False),
    MatmulProblem(256, 64, "f16", layout="kn", epilogue=GELU, static=True),
    MatmulProblem(100, 72, "tf32x3"),
    MatmulProblem(64, 64, "f32", epilogue=GELU),
    IMAGES,
    replace(IMAGES, image=(9, 7, 24), result=(5, 4, 40), strides=(2, 2), multiplies="bf16"),
    replace(IMAGES, multiplies="tf32x3", bias=False, epilogue=None, reads=(), static=True),
)
TOKENS = AttentionProblem(12, 12, 32, 32, "f16", pitches=(1152, 1152, 1152, 384), mask="add",
                          reads=(True, False, False, True))  # fmt: skip
SEQUENCES = AttentionProblem(12, 4, 64, 64, "bf16", queries=197, keys=50, order="bottom")
ATTENTIONS = (
    TOKENS,
    SEQUENCES,
    replace(TOKENS, batch=8, heads_k=3, head=128, head_v=64, pitches=(0, 0, 0, 0), keys=77),
    replace(SEQUENCES, static=True, head=80, filled=True, capped=True, guarded=True),
)
PROBLEMS += ATTENTIONS
FEW, WIDE = (64, 48, 0, 0, 2, 0, 0), (128, 256, 64, 4, 0, 0, 0)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_problem_is_that_of_its_own_program(problem: TiledProblem) -> None:
    """What the tuner times is what plans hold."""
    program = problem.program(rows=5 if problem.static else "m")
    assert SPACE.problem_of(program, program.calls[0]) == problem
    assert plan_encoding.encode(program)[0] == plan_encoding.MAGIC
    case = Case(problem, 128)
    assert case_from_json(json.loads(json.dumps(case_to_json(case, SPACE))), SPACE) == case


def test_batches_and_sums_in_memory_have_no_schedule() -> None:
    call = PLAIN.program().calls[0]
    x = call.views[0]
    assert x is not None
    batched = replace(x, dims=(2, "m", 768), strides=(0, 768, 1))
    assert matmul_of(replace(call, views=(batched, *call.views[1:]))) is None
    symbolic = replace(x, dims=("m", "d"))
    assert matmul_of(replace(call, views=(symbolic, *call.views[1:]))) is None


def test_parts_of_images_and_of_the_depth_have_no_schedule() -> None:
    call = IMAGES.program().calls[0]
    x = call.views[0]
    assert x is not None and conv_of(call) == IMAGES
    part = replace(x, dims=("m", 14, 14, 128))
    assert conv_of(replace(call, views=(part, *call.views[1:]))) is None
    symbolic = replace(x, dims=("m", "h", 14, 256))
    assert conv_of(replace(call, views=(symbolic, *call.views[1:]))) is None


def test_a_schedule_of_images_comes_before_the_rule() -> None:
    tile = (128, 128, 64, 6, 0, 1, 0)
    table = (TileSchedule(4), TileSchedule(2**31 - 1, *tile))
    ruled = variants_of(IMAGES.program().calls[0])
    found = variants_of(IMAGES.program(table).calls[0])
    assert tile_numbers(found[0][0]) == tile and found[1:] == ruled
    assert [evaluate(found[0][1], {"m": n}) > 0 for n in (4, 5, 64)] == [False, True, True]


def moved(call: Call, name: str, **changes: Any) -> Call:
    """Return a call one of whose views is changed."""
    at = CALLS.of(call).slices(call)[name].start
    view = call.views[at]
    assert view is not None
    return replace(call, views=(*call.views[:at], replace(view, **changes), *call.views[at + 1 :]))


def test_attention_that_the_tuner_cannot_place_has_no_schedule() -> None:
    call = TOKENS.program().calls[0]
    assert attention_of(call) == TOKENS
    cached = moved(call, "k", dims=(1, 12, "past", 32))
    assert attention_of(cached) is None
    assert attention_of(moved(call, "q", offset=4)) is None
    assert attention_of(moved(call, "q", offset=384)) == TOKENS
    assert attention_of(moved(call, "v", strides=(0, 1, 384, 12))) is None
    assert attention_of(call.having(scale=-1.0)) is None


def test_schedules_of_attention_hold_where_its_kernels_do() -> None:
    """A kernel for 128 keys is not for more; where the batch varies too, one sequence is tuned."""
    few, flash = (64, 128, 0, 1, 0, 0, 0), (128, 128, 0, 2, 0, 0, 0)
    table = (TileSchedule(64), TileSchedule(256, *few), *TILE_SCHEDULES[2:4],
             TileSchedule(2**31 - 1, *flash))  # fmt: skip

    def first(call: Call, **sizes: int) -> tuple[int, ...]:
        found = next(v for v, when in variants_of(call) if evaluate(when, sizes) > 0)
        return tile_numbers(found)

    one = TOKENS.program(table).calls[0]
    ruled = TOKENS.program().calls[0]
    assert first(one, m=100) == first(one, m=128) == few != first(ruled, m=128)
    assert first(one, m=129) == first(ruled, m=129) and first(one, m=64) == first(ruled, m=64)
    assert first(one, m=5000) == flash
    views = [v and replace(v, dims=("b", *v.dims[1:])) for v in one.views]
    several = replace(one, views=tuple(views))
    assert attention_of(several) == TOKENS and TOKENS.rows_of((3, 12, 100, 32)) == 0
    assert first(several, m=100, b=1) == few
    assert first(several, m=100, b=2) == first(replace(several, schedules=()), m=100, b=2)
    tall = (128, 32, 0, 2, 0, 0, 0)
    images = SEQUENCES.program((TileSchedule(4), TileSchedule(2**31 - 1, *tall))).calls[0]
    assert [first(images, m=n) == tall for n in (4, 5, 64)] == [False, True, True]


@pytest.mark.parametrize("causal", [0, 1])
def test_a_described_attention_is_a_problem(
    causal: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_model, "gpus", tuple)
    monkeypatch.setattr(spaces, "gpus", tuple)
    described = ProblemDescriptor("attention", (2, 4, 70, 70, 32), {"causal": causal})
    options = Options(target="cuda:sm_80", precision="fp16", budget=1, cache=tmp_path)
    (tuned,) = tune_problem(described, options).tuned.tuned
    order = "top" if causal else "none"
    assert tuned.case == Case(
        AttentionProblem(4, 4, 32, 32, "f16", queries=70, keys=70, order=order, static=True), 2
    )


@pytest.mark.parametrize("level", ARCHITECTURES)
def test_attention_is_tuned_in_tiles_that_fit(level: str) -> None:
    """Wide heads leave no registers to tall tiles, and on sm_75 no shared memory."""
    narrow = replace(TOKENS, multiplies="f16", pitches=(0,) * 4)
    wide = replace(narrow, head=128, head_v=128, mask="none", reads=(False,) * 4)
    plain = [v.tile for v in tiles_of(narrow, level, 2048) if v.template == "attention.cu.in"]
    tight = [v.tile for v in tiles_of(wide, level, 2048) if v.template == "attention.cu.in"]
    assert plain == ["64x64", "64x32", "128x64", "128x32"]
    assert tight == (["64x32"] if level == "sm_75" else ["64x64", "64x32"])
    for problem in (narrow, wide):
        for rows in (16, 128, 4096):
            case = Case(problem, rows)
            able = {v.tile for v in tiles_of(problem, level, rows)}
            seeds = list(SPACE.space(case, level, None).legal_seeds())
            assert seeds or problem is wide
            for seed in seeds:
                schedule = SPACE.schedule(case, seed)
                assert isinstance(schedule, TileSchedule)
                assert variant_run(problem, rows, schedule, level).tile in able


def test_tiles_beyond_the_shared_memory_of_an_architecture_are_left_out() -> None:
    """They were tuned on another one; a plan has the rule's kernels too."""
    wide = replace(TOKENS, head=128, head_v=128, pitches=(0,) * 4)
    call = wide.program((TileSchedule(2**31 - 1, 64, 64, 0, 2),)).calls[0]
    contents = LibraryContents(kernels=kernels_of(call))
    found = sources_for_levels(contents, ("sm_75", "sm_80"))
    tiles = {level: {s.symbol.split("_")[-4] for s in found[level]} for level in found}
    assert tiles == {"sm_75": {"64x32"}, "sm_80": {"64x64", "64x32"}}


# ---- what a plan makes of a schedule --------------------------------------------------------


def test_schedules_come_before_the_rule_in_their_range() -> None:
    table = (TileSchedule(64), TileSchedule(256, *FEW), *TILE_SCHEDULES[2:4],
             TileSchedule(2**31 - 1, *WIDE))  # fmt: skip
    program = with_schedules(PLAIN.program(), SPACE.problem_of, {PLAIN: table})
    (call,) = program.calls
    assert call.schedules == table
    by_rule = variants_of(PLAIN.program().calls[0])

    def first(rows: int) -> tuple[int, ...]:
        found = next(v for v, when in variants_of(call) if evaluate(when, {"m": rows}) > 0)
        return tile_numbers(found)

    def ruled(rows: int) -> tuple[int, ...]:
        found = next(v for v, when in by_rule if evaluate(when, {"m": rows}) > 0)
        return tile_numbers(found)

    assert first(65) == first(256) == FEW
    assert first(4097) == first(100_000) == WIDE
    for rows in (1, 64, 257, 1024, 4096):
        assert first(rows) == ruled(rows)
    assert variants_of(call)[-1] == by_rule[-1]
    assert set(kernels_of(call)) >= set(kernels_of(PLAIN.program().calls[0]))
    assert plan_encoding.encode(program) != plan_encoding.encode(PLAIN.program())


def test_fixed_rows_keep_only_what_they_run() -> None:
    fixed = replace(PLAIN, static=True)
    table = (TileSchedule(64, *WIDE), TileSchedule(256, *FEW), TileSchedule(2**31 - 1, *WIDE))
    found = [tile_numbers(v) for v, _ in variants_of(fixed.call(128, table))]
    assert found[0] == FEW and WIDE not in found[:1] and len(found) <= 3


def test_a_tile_that_cannot_compute_a_call_is_left_to_the_rule() -> None:
    odd = MatmulProblem(100, 72, "f16")  # no multiple of what tensor maps need
    own = variants_of(odd.call(8, (TileSchedule(2**31 - 1, *WIDE),)))
    assert own == variants_of(odd.call(8))


# ---- spaces ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level",
    [pytest.param(n, marks=[pytest.mark.slow] * (n not in OFTEN)) for n in ARCHITECTURES],
)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_space_has_the_tiles_of_an_architecture(problem: TiledProblem, level: str) -> None:
    for rows in (16, 2048):
        case = Case(problem, rows)
        able = {v.tile for v in tiles_of(problem, level, rows)}
        if (problem.multiplies, level) == ("bf16", "sm_75"):
            assert not able  # such a target computes in fp32
            return
        legal = [SPACE.schedule(case, c) for c in SPACE.space(case, level, None).legal()]
        assert legal[0] == default_schedule(case) and len(set(legal)) == len(legal)
        run = [
            variant_run(problem, rows, s, level).tile for s in legal if isinstance(s, TileSchedule)
        ]
        assert set(run) == able and len(run) == len(able)
        for one in candidates_to_measure(case, SPACE, level, (1,)):
            assert one != default_schedule(case) and one.text.startswith("tiles of")


def test_seeds_are_tiles_that_exist() -> None:
    for level, by_range in SEEDS.items():
        assert len(by_range) == len(TILE_SCHEDULES)
        known = {tile_numbers(v) for v in VARIANTS
                 if v.op == "gemm" and not v.refusal(ARCHITECTURES[level])}  # fmt: skip
        for seed in (s for seeds in by_range for s in seeds):
            axes = ("tile_m", "tile_n", "tile_k", "stages", "split_k", "pingpong", "pair")
            assert tuple(seed.get(axis, 0) for axis in axes) in known, (level, seed)
    for level, by_range in ATTENTION_SEEDS.items():
        known = {tile_numbers(v) for v in VARIANTS
                 if v.op == "attention" and not v.refusal(ARCHITECTURES[level])}  # fmt: skip
        assert len(by_range) == len(TILE_SCHEDULES)
        assert {tuple(s.get(a, 0) for a in axes) for seeds in by_range for s in seeds} <= known


# ---- timing ---------------------------------------------------------------------------------


def requested(exceeded: int, problem: TiledProblem = PLAIN) -> dict[str, Any]:
    """A request to compare the rule's tile with another."""
    case, symbols = Case(problem, 200), [s.symbol for s in sources_of(problem, "sm_90a").values()]
    files = {symbol: Path(f"{i}.cubin") for i, symbol in enumerate(symbols)}
    schedules = (default_schedule(case), TileSchedule(256, *WIDE))
    return request_for(case, schedules, "sm_90a", files, exceeded, 132)


def test_a_request_tells_all_parameters() -> None:
    request = json.loads(json.dumps(requested(0)))
    weights, x = 768 * 3072 * 2, 200 * 768 * 2
    assert request["buffers"][:2] == [x, weights] and request["copies"] == 1
    for kernel in request["kernels"]:
        maps = [a["map"] for a in kernel["arguments"] if "map" in a]
        assert len(maps) == 2 and kernel["grid"] > 0
        places = {a["buffer"] for a in kernel["arguments"] if "buffer" in a}
        assert places == set(range(len(request["buffers"])))
    (pixels, filters) = (a["map"] for a in requested(0, IMAGES)["kernels"][0]["arguments"]
                         if "map" in a)  # fmt: skip
    assert pixels["before"] == (1, 1) and pixels["steps"] == (1, 1) and "steps" not in filters
    cold = requested(100 << 20)
    assert cold["copies"] * sum(cold["buffers"]) > 100 << 20


def test_a_request_tells_the_views_of_attention() -> None:
    request = json.loads(json.dumps(requested(0, TOKENS)))
    assert request["buffers"] == [2 * 200 * 1152] * 3 + [4 * 200, 2 * 200 * 384]
    rule, tile = request["kernels"]
    assert rule == tile and rule["grid"] > 0  # no kernel of attention has such a tile
    other = replace(SEQUENCES, multiplies="f16")
    files = {s.symbol: Path("k.cubin") for s in sources_of(other, "sm_90a").values()}
    pair = (TileSchedule(4, 192, 128, 0, 2), TileSchedule(4, 64, 32, 0, 2))
    flash, small = request_for(Case(other, 3), pair, "sm_90a", files, 0, 132)["kernels"]
    assert "_128x128x2__" in flash["symbol"] or "_192x128x2__" in flash["symbol"]
    assert small["grid"] == 3 * 12 * 4 and "_64x32__" in small["symbol"]
    assert [a["map"]["dims"] for a in flash["arguments"] if "map" in a][1] == (64, 50, 4, 3)


@pytest.mark.parametrize("problem", [PLAIN, IMAGES], ids=str)
def test_kernels_are_timed_in_turn(problem: TiledProblem, tmp_path: Path) -> None:
    request = {**requested(20 << 20, problem), "pairs": 3, "seconds": 5.0}
    for kernel in request["kernels"]:
        kernel["file"] = str(tmp_path / Path(kernel["file"]).name)
        Path(kernel["file"]).write_bytes(b"")
    driver = TimedDriver()
    driver.seconds_of = {request["kernels"][1]["symbol"]: 5e-6}
    answer = device_main.compare_kernels(device_main.DeviceDriver(driver), request)
    assert answer["a"] == pytest.approx([1e-3] * 3) and answer["b"] == pytest.approx([5e-3] * 3)
    broken = device_main.DeviceDriver(TimedDriver(broken="cuGraphInstantiate"))
    assert "cuGraphInstantiate returned" in device_main.compare_kernels(broken, request)["error"]


def test_a_worker_that_dies_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys; sys.exit('no GPU here')")
    monkeypatch.setattr(event_fixture.device_main, "__file__", str(script))
    with pytest.raises(WorkerError, match="no GPU here"):
        DeviceWorker().ask({}, 5.0)
    script.write_text('print(\'{"error": "a fault"}\', flush=True); input()')
    with pytest.raises(WorkerError, match="a fault"):
        DeviceWorker().ask({}, 5.0)


def test_a_fixture_compiles_every_tile_and_asks_its_worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = list[dict[str, Any]]()

    class RecordedWorker:
        def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
            asked.append(request)
            return {"a": [2.0, 2.0], "b": [1.0, 1.0]}

        def stop(self) -> None:
            asked.clear()

    small = MatmulProblem(64, 64, "f32")
    monkeypatch.setattr(event_fixture, "DeviceWorker", RecordedWorker)
    with EventFixture([small], "sm_80", Environment(), 0, 108) as fixture:
        case = Case(small, 64)
        legal = [SPACE.schedule(case, c) for c in SPACE.space(case, "sm_80", None).legal()]
        (other,) = [s for s in legal if s != default_schedule(case)]
        times = fixture.compare(case, default_schedule(case), other, 1, 2, 1.0)
        assert times.a_ms == (2.0, 2.0) and times.b_ms == (1.0, 1.0)
        assert all(Path(k["file"]).stat().st_size for k in asked[0]["kernels"])
    assert not asked


# ---- results of another machine -------------------------------------------------------------


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Environment, TileSchedule]:
    """A cache with the result of a machine that has a GPU; here there is none."""
    monkeypatch.setattr(machine_model, "gpus", tuple)
    monkeypatch.setattr(spaces, "gpus", tuple)
    environment = Environment(cache=tmp_path / "cache")
    best = TileSchedule(256, *WIDE)
    options = TuningOptions(("sm_90a",), threads=(1, 16), budget=5.0)
    abouts = list[dict[str, str]]()
    about = Tuner.about

    def spied(self: Tuner, case: Case) -> dict[str, str]:
        abouts.append(about(self, case))
        return abouts[-1]

    monkeypatch.setattr(Tuner, "about", spied)
    tune((Workload(PLAIN, 1, (200,)),), options, GPU, environment)
    monkeypatch.setattr(Tuner, "about", about)
    there = {
        **abouts[0],
        "machine": "NVIDIA H100 [abc]",
        "compiler": "another",
        "onnxruntime": "1",
    }
    with TuningCache(environment.cache / "tuning.sqlite") as cache:
        entry = CacheEntry({"schedule": schedule_to_json(best), "gain": 1.2}, [], True, "", there)
        cache.put(result_cache_key(there), entry)
    return environment, best


def test_a_machine_without_a_gpu_uses_imported_results(
    imported: tuple[Environment, TileSchedule], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, best = imported
    work = (Workload(PLAIN, 1, (200,)),)
    options = TuningOptions(("sm_80", "sm_90a"), threads=(2,), budget=5.0)
    (found,) = tune(work, options, GPU, environment)
    assert (found.schedule, found.source, found.gain) == (best, "cache", 1.2)
    (other,) = tune(work, replace(options, levels=("sm_80",)), GPU, environment)
    assert other.source == "default"
    monkeypatch.setattr(spaces, "gpus", lambda: (H100,))
    (own,) = tune(work, replace(options, budget=0.0), GPU, environment)
    assert own.source == "default", "a machine with a GPU measures for itself"


def test_rows_that_differ_get_large_tiles_when_there_are_many() -> None:
    """Behind norms they have no registers left."""
    normed = MatmulProblem(384, 1536, "f16", norm="layer")

    def tile(problem: MatmulProblem, rows: int, level: str) -> str:
        return variant_run(problem, rows, TileSchedule(2**31 - 1), level).tile

    assert tile(normed, 256, "sm_90a").startswith("64x") and tile(normed, 1023, "sm_90a")[0] == "3"
    assert tile(normed, 5000, "sm_90a") == tile(normed, 5000, "sm_75") == "32x64x64x4"
    fixed = replace(PLAIN, static=True)
    for rows in (64, 1023, 1024, 8192):
        assert tile(PLAIN, rows, "sm_80") == tile(fixed, rows, "sm_80")


def test_a_product_whose_row_sums_are_read_is_left_to_the_rule() -> None:
    call = PLAIN.program().calls[0]
    named: dict[str, Any] = CALLS.of(call).named(call)
    sums = View.dense(Buffer("temp", 0), ("m", 4, 2))
    summed = CALLS.make("gemm", "f16", x=named["x"], w=named["w"], bias=named["bias"],
                        y=list(named["y"]), layout="nk", y_sums=sums)  # fmt: skip
    assert matmul_of(call) == PLAIN and matmul_of(summed) is None


@pytest.mark.parametrize(
    ("k", "n", "usual", "shared"),
    [(768, 2304, (72, 3), (96, 1)), (768, 3072, (64, 2), (96, 1)), (3072, 768, (64, 8), (96, 3)),
     (384, 384, (16, 2), (48, 1))],
)  # fmt: skip
def test_concurrent_runs_get_few_blocks_without_partners(
    k: int, n: int, usual: tuple[int, int], shared: tuple[int, int]
) -> None:
    """Blocks of a cluster occupy multiprocessors while they wait for each other."""
    case = Case(MatmulProblem(k, n, "f16", static=True), 128)
    first = variants_of(case.problem.program(rows=128).calls[0])[0][0]
    assert (first.params["n"], first.params["split"]) == usual
    found = SPACE.concurrent_schedule(case, 8)
    assert isinstance(found, TileSchedule) and (found.n, found.split) == shared
    assert found.max_rows == default_schedule(case).limit


def test_concurrent_runs_of_many_rows_or_other_kernels_keep_the_rule() -> None:
    assert SPACE.concurrent_schedule(Case(PLAIN, 1000), 8) is None
    assert SPACE.concurrent_schedule(Case(MatmulProblem(768, 768, "f32"), 128), 8) is None
    assert SPACE.concurrent_schedule(Case(TOKENS, 128), 8) is None
