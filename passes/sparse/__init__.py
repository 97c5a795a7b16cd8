"""Sparse, low-rank and dead parts of weights, found or chosen by compression."""
