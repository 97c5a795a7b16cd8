"""From fused regions to programs of kernel calls."""
