"""Exploit sparse, low-rank and dead parts of weights, in the model or chosen by compression."""
