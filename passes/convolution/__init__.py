"""Convert convolutions, pooling and resizing, and fuse their neighbours into them."""
