"""Chains of elementwise operators, reductions and norms, and who absorbs them."""
