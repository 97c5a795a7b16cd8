"""The GPU backend: generates CUDA C++ kernels, and proves their layouts and pipelines safe.

``semantic`` models fragments, shared memory and pipelines.  It proves them safe before a kernel is
generated.  ``README.md`` explains the layers.
"""
