"""What GPU kernels do, apart from how it is written: who holds which number of a fragment, where
shared memory keeps it, which banks that takes, and what each stage of a pipeline waits for.

Templates take their index arithmetic from here, the tests' machine takes the meaning of the matrix
instructions from here, and every layout and pipeline is proved before a kernel is written with it.
"""
