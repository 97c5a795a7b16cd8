"""Convert matrix multiplications, merge those of one input, and fuse their neighbours."""
