"""Exploit sparse, low-rank and dead parts of weights, found in them or chosen by compression."""
