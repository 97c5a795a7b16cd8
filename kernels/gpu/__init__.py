"""The GPU backend below the backend protocol: kernels as text, and what must hold of them.

``semantic`` models fragments, shared memory and pipelines, and proves them safe before a kernel is
generated.  ``README.md`` explains the layers.
"""
