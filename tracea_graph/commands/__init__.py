"""The ``tracea`` commands, without their command lines."""
