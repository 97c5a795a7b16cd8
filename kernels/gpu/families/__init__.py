"""Families of kernels: the parameters of each template, and the launches of its kernels."""
