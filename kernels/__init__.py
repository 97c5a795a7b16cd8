"""What every backend shares, ``schema`` of kernel calls and ``program``, and a folder each."""
