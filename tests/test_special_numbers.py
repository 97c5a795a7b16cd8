"""NaN, infinities and numbers that no integer holds, through the whole pipeline: casts, and where
NaN goes among other numbers.  docs/verification.md says which answers differ from ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import Net, normal
from tracea_graph import Options, api
from tracea_graph.check.worker_process import Array, Worker

pytestmark = [pytest.mark.compiler, pytest.mark.usefixtures("highest_level")]
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 3e9, -3e9, 2.0**31, -(2.0**31), 2.0**63,
     -(2.0**63), 300.0, -129.0, 1e-40],
    np.float32,
)  # fmt: skip
Build = Callable[[Net, str], str]
I32, I64, U8, I8, BOOL, F32 = 6, 7, 2, 3, 9, 1


def cast(net: Net, x: str, *types: int) -> str:
    for to in types:
        x = net("Cast", x, to=to)
    return x


def quantised(net: Net, x: str, zero: int, dtype: type) -> str:
    operands = 0.05, net.const(zero, dtype)
    return net("DequantizeLinear", net("QuantizeLinear", x, *operands), *operands)


def top(net: Net, x: str, k: int, result: int, largest: int) -> str:
    return net.many("TopK", 2, x, net.ints(k), axis=-1, largest=largest)[result]


def product(net: Net, x: str) -> str:
    """A product that is stored in integers, too."""
    return cast(net, net("MatMul", x, net.const(np.eye(40))), I64)


SAME: Mapping[str, Build] = {
    **{f"cast to {t} and back": partial(lambda n, x, t: cast(n, x, t, F32), t=t)
       for t in (I32, I64, U8, I8, BOOL)},
    **{f"cast to {t}": partial(lambda n, x, t: cast(n, x, t), t=t)
       for t in (I32, I64, U8, I8, BOOL)},
    "cast to int64 and int32": lambda n, x: cast(n, x, I64, F32, I32, F32),
    "one over a cast": lambda n, x: n("Reciprocal", cast(n, x, I32, F32)),
    "a product in integers": product,
    "quantised": partial(quantised, zero=128, dtype=np.uint8),
    "quantised, signed": partial(quantised, zero=-3, dtype=np.int8),
    **{f"TopK {k} {r} {most}": partial(top, k=k, result=r, largest=most)
       for k in (1, 3, 40) for r in (0, 1) for most in (0, 1)},
    **{f"{op} {last}": partial(
           lambda n, x, op, last: n(op, x, axis=-1, select_last_index=last), op=op, last=last)
       for op in ("ArgMax", "ArgMin") for last in (0, 1)},
    **{f"{op} {side}": partial(
           lambda n, x, op, side: n(op, *(x, n.const(normal(40)))[::side]), op=op, side=side)
       for op in ("Max", "Min") for side in (1, -1)},
    "Clip": lambda n, x: n("Clip", x, -0.5, 0.5),
    "Relu": lambda n, x: n("Relu", x),
}  # fmt: skip
"""What answers as ONNX Runtime does, over ``[n, s, 40]``."""

WINDOWS = {
    "3x3": {"kernel_shape": [3, 3], "pads": [1] * 4},
    "3x3 by two": {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [2, 2]},
    "2x2": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "5x5 apart": {"kernel_shape": [5, 5], "dilations": [2, 2]},
}
POOLS: Mapping[str, Build] = {
    **{f"MaxPool {name}": partial(lambda n, x, a: n("MaxPool", x, **a), a=attrs)
       for name, attrs in WINDOWS.items()},
    "GlobalMaxPool": lambda n, x: n("GlobalMaxPool", x),
}  # fmt: skip
EXTREMES: Mapping[str, Build] = {
    f"{op} {axes}": partial(
        lambda n, x, op, axes: n(op, x, n.ints(*axes), keepdims=0), op=op, axes=axes)
    for op in ("ReduceMax", "ReduceMin") for axes in ((-1,), (1,), (0,), (0, 1, 2))
}  # fmt: skip
"""Over ``[n, s, 40]``."""


def model() -> Net:
    """Every one of them, over an input and over a sum, a product with ones or a convolution."""
    net = Net(18)
    x, image = net.input("x", "n", "s", 40), net.input("image", "n", 16, "h", "w")
    flat = (x, net("Mul", x, net.const(np.ones(40))))
    ones = net.const(np.ones((16, 1, 1, 1)))
    images = (image, net("Mul", image, 1.0), net("Conv", image, ones, group=16))
    made = [build(net, y) for y in flat for build in (*SAME.values(), *EXTREMES.values())]
    net.graph(*made, *(build(net, y) for y in images for build in POOLS.values()))
    return net


NAMES = [*[*SAME, *EXTREMES] * 2, *[*POOLS] * 3]


def feeds(seed: int) -> dict[str, Array]:
    """A few or many special numbers; now and then nothing else."""
    rng = np.random.default_rng(seed)
    given = {"x": normal(2, 5, 40, seed=seed), "image": normal(2, 16, 9, 11, seed=seed)}
    for name, x in given.items():
        some = rng.random(x.shape) < (0.03, 0.2, 0.9)[seed % 3]
        kinds = SPECIAL if name == "x" else SPECIAL[:1]
        x[some] = rng.choice(kinds, some.sum())
        x[0, 0], x[1, 1:3] = np.nan, np.where(x[1, 1:3] > 0, np.nan, x[1, 1:3])
    return given


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    folder, net = tmp_path_factory.mktemp("special"), model()
    onnx.save(net.model, folder / "m.onnx")
    report = api.optimize(folder / "m.onnx", Options(folder / "out", keep="all", verify=False))
    ops = {node.op_type for node in onnx.load(str(report.output)).graph.node}
    left = {op for op in ops if "_" not in op}  # casts to eight bits, and what all others read
    assert report.library and left <= {"Cast", "Mul"}
    return net, Path(str(report.output))


def test_numbers_are_what_onnx_runtime_makes_of_them(result: tuple[Net, Path]) -> None:
    net, path = result
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so"))
        for seed in range(9):
            given = feeds(seed)
            pairs = zip(NAMES, worker.run("m", given).values(), net.run(given), strict=True)
            for name, found, wanted in pairs:
                if name in SAME:
                    np.testing.assert_allclose(found, wanted, 1e-6, err_msg=f"{name} {seed}")


def test_an_extreme_of_nan_is_nan(result: tuple[Net, Path]) -> None:
    """ONNX Runtime keeps NaN or passes it over, by its place; here it stays."""
    _, path = result
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so"))
        for seed in range(9):
            given = feeds(seed)
            for name, found in zip(NAMES, worker.run("m", given).values(), strict=True):
                if name in EXTREMES:
                    op, axes = name.split(" ", 1)
                    reduce = np.max if op == "ReduceMax" else np.min
                    np.testing.assert_array_equal(found, reduce(given["x"], eval(axes)), name)


TOGETHER = {4: 4, 8: 2, 12: 4, 5: 1, 16: 1, 32: 1}
"""By the channels of a group: how many groups fill whole blocks of 16 channels, up to four."""


def side_by_side(filters: Array, groups: int, count: int) -> Array:
    """The filters of ``count`` groups as those of one, with zeros for the others' channels."""
    o, i, *kernel = filters.shape
    made = np.zeros((o, count * i, *kernel), np.float32)
    for j in range(o):
        place = j // (o // groups) % count
        made[j, place * i : (place + 1) * i] = filters[j]
    return made


def grouped(together: bool) -> Net:
    """Convolutions of four groups, of which some are one in our kernels."""
    net = Net(18)
    for each, count in TOGETHER.items():
        x, w = net.input(f"x{each}", "n", 4 * each, "h", "w"), normal(4 * each, each, 3, 3)
        if together:
            w = side_by_side(w, 4, count)
        made = net("Conv", x, net.const(w), group=4 // count if together else 4, pads=[1] * 4)
        net("Relu", made, name=f"y{each}")
    net.graph(*(f"y{each}" for each in TOGETHER))
    return net


def test_groups_of_one_block_share_what_is_not_finite(tmp_path: Path) -> None:
    """As if they were one group, with zeros between them: then ONNX Runtime says the same."""
    net, dense = grouped(together=False), grouped(together=True)
    onnx.save(net.model, tmp_path / "m.onnx")
    report = api.optimize(tmp_path / "m.onnx", Options(tmp_path, keep="all", verify=False))
    path = Path(str(report.output))
    ops = [node.op_type for node in onnx.load(path).graph.node]
    assert sum(op.startswith("FusedConv") for op in ops) == len(TOGETHER)
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so"))
        for seed, number in enumerate((np.nan, np.inf, -np.inf)):
            given = {f"x{n}": normal(2, 4 * n, 6, 7, seed=seed) for n in TOGETHER}
            for x in given.values():
                x[0, 0, 2, 3] = x[1, -1, 5, 6] = number
            pairs = zip(TOGETHER, worker.run("m", given).values(), dense.run(given), strict=True)
            for each, found, wanted in pairs:
                np.testing.assert_allclose(found, wanted, 1e-4, 1e-4, err_msg=f"{each} {number}")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_tiles_of_a_transformed_convolution_share_what_is_not_finite(
    number: float, tmp_path: Path
) -> None:
    """Those of four by four results that read it; all others are as ONNX Runtime has them."""
    net = Net(18)
    x = net.input("x", "n", 32, "h", "w")
    net.save(
        tmp_path / "m.onnx",
        net("Conv", x, net.const(normal(32, 32, 3, 3)), pads=[1] * 4, name="y"),
    )
    report = api.optimize(tmp_path / "m.onnx", Options(tmp_path, keep="all", verify=False))
    path = Path(str(report.output))
    given = {"x": normal(1, 32, 56, 56)}
    given["x"][0, 3, 20, 21] = number
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so"))
        (found,), (wanted,) = worker.run("m", given).values(), net.run(given)
    rows, columns = slice(16, 24), slice(20, 24)  # read from 15 on, to 24, and from 19 on
    assert np.isnan(found[..., rows, columns]).sum() > np.isnan(wanted).sum()
    assert not np.isfinite(found[~np.isfinite(wanted)]).any()
    found[..., rows, columns] = wanted[..., rows, columns] = 0
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4 * np.abs(wanted).max())


def test_pooling_passes_nan_over(result: tuple[Net, Path]) -> None:
    """But where a window holds nothing else.  ONNX Runtime keeps it, passes it over or forgets
    what came before it, by its place; where there is none, both answer alike."""
    net, path = result
    with Worker() as worker:
        worker.open("m", path, path.with_suffix(".so"))
        for seed in range(9):
            given = feeds(seed)
            lost = np.isnan(given["image"])
            numbers = {**given, "image": np.where(lost, np.float32(-1e30), given["image"])}
            wanted = net.run(numbers)
            for name, found, y in zip(NAMES, worker.run("m", given).values(), wanted, strict=True):
                if name in POOLS:
                    want = np.where(y == np.float32(-1e30), np.float32(np.nan), y)
                    np.testing.assert_array_equal(found, want, f"{name} {seed}")
