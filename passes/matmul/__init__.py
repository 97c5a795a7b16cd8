"""Matrix products, by constants and by activations."""
