"""Match activations and norms; fuse elementwise expressions and reductions."""
