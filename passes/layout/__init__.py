"""Data movement as index maps: transposes, slices, concatenations, gathers."""
