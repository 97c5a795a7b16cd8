"""Decompose composite and fused operators into the operators that rules match."""
