"""View ops, transposes, concatenations and gathers: fuse, sink, cancel or hoist them."""
