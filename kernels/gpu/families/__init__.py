"""Kernels by kind: what each template asks for, and how what comes of it is launched."""
