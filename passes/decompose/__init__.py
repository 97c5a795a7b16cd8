"""Operators that are several others, written out."""
