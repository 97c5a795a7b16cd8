"""Runs a model in onnxruntime: ``run_model.py MODEL FEEDS.npz OUT.npz [LIBRARY]``.

Needs onnxruntime and NumPy alone.  Runs twice, keeps both answers and says onnxruntime's version.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime


def main(model: str, feeds: str, out: str, library: str = "") -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    if library:
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(model, options)
    given = dict(np.load(feeds))
    results = session.run(None, given)
    again = session.run(None, given)
    np.savez(out, *results, *again)
    sys.stdout.write(onnxruntime.__version__)


main(*sys.argv[1:])
