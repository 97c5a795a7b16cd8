"""The steps between the stages: planning, assembling, building candidates, publishing files."""
