"""Match products of 8-bit integers, in all forms that quantizers write."""
