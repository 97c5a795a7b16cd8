"""The GPU backend below the backend protocol: kernels as text, and what must hold of them.

``semantic`` describes what a kernel does above its text, and proves it.  ``README.md`` says how
the layers meet.
"""
