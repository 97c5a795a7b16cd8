"""What GPU kernels do, apart from how it is written: who holds which number of a fragment, where
shared memory keeps it, which banks that takes, and what each stage of a pipeline waits for.

Templates take their index arithmetic from this package, and the tests' simulator takes the meaning
of matrix instructions from it.  Every layout and pipeline is proved before a kernel uses it.
"""
