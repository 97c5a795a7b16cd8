"""What the commands beside ``tracea-optimize`` do."""
