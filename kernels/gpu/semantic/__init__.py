"""Models of GPU kernels, independent of their source: which thread holds which element of a
fragment, where shared memory stores it and in which banks, and what each pipeline stage waits for.

Templates take their index arithmetic from this package, and the tests' simulator takes the meaning
of matrix instructions from it.  Every layout and pipeline is proved before a kernel uses it.
"""
