"""Verification and timing: make feeds, check candidates, and select the rewrites that pay.

``bindings`` chooses symbol sizes to time and verify with.  ``feeds`` synthesises inputs from how
the graph uses them (``input_constraints``) or reads them from a file.  ``worker`` is a process
that opens, runs and measures models (``worker_main`` runs inside it).  ``reference`` runs the
original, and ``verify`` compares a candidate with its answers (``distance``).  ``timing`` turns
paired runs into a ratio with bounds.  ``selection`` keeps the groups of rewrites that pay, within
a budget (``comparison``).
"""
