"""The CPU backend: kernel sources, the runtime that executes programs of them, and lowering.

``lowering`` writes programs of the ``calls``, ``plan`` encodes them for the runtime, ``variants``
lists the kernels and ``emitter`` renders them; ``README.md`` says how the parts meet.
"""
