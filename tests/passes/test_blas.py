"""One thread for small factorisations, and as many as before afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from tracea_graph.passes.sparse import blas


def test_one_thread_and_back() -> None:
    found = blas._threads()
    if found is None:
        pytest.skip("this NumPy has no OpenBLAS")
    get, put = found
    before = get()
    put(2)
    try:
        with blas.one_thread():
            assert get() == 1
        assert get() == 2
        with pytest.raises(ZeroDivisionError), blas.one_thread():
            raise ZeroDivisionError
        assert get() == 2
    finally:
        put(before)


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_threads", lambda: None)
    with blas.one_thread():
        assert np.linalg.cholesky(4 * np.eye(2))[0, 0] == 2.0
