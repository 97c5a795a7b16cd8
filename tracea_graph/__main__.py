"""``python -m tracea_graph``: run the ``tracea`` command."""

from __future__ import annotations

import sys

from tracea_graph.cli import main

if __name__ == "__main__":
    sys.exit(main())
