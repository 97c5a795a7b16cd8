"""Lowering for GPUs: a fused region becomes a program of the backend's calls."""
