"""Convolutions, pools, resizes, and what they absorb."""
