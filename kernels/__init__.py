"""Source text of the CPU kernels, and the runtime that executes programs of them.

``variants`` lists what exists, ``cpu`` renders it, ``plan`` encodes programs for the runtime;
``README.md`` says how the parts meet.
"""
