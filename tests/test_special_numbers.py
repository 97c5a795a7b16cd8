"""NaN, infinities and numbers that no integer holds, through the whole pipeline: casts, and where
NaN goes among other numbers.  kernels/cpu/README.md says which answers differ from ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import Net, normal

from tracea_graph import Options, api
from tracea_graph.check.worker import Array, Worker

pytestmark = pytest.mark.compiler
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
    report = api.optimize(folder / "m.onnx", Options(folder / "out", keep="legal", verify=False))
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
