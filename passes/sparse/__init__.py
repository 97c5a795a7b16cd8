"""Zero blocks, low rank, dead channels: structure of weights, found or made."""
