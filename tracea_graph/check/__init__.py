"""Verification and timing: make feeds, check candidates, and select the rewrites that pay.

``symbol_bindings`` chooses symbol sizes to time and verify with.  ``input_feeds`` synthesises
inputs from how the graph uses them (``input_constraints``) or reads them from a file.
``worker_process`` opens, runs and measures models in a process (``worker_main`` runs inside it).
``reference_outputs`` runs the original, and ``verify_outputs`` compares a candidate with its
answers (``output_errors``).  ``timing_statistics`` turns paired runs into a ratio with bounds.
``rewrite_selection`` keeps the groups of rewrites that pay, within a budget
(``paired_benchmark``).
"""
