"""Feeds, verification, timing and decisions: what is right, what is faster, what stays.

``bindings`` sizes the symbols to time and verify with; ``feeds`` makes inputs from how the graph
uses them (``input_constraints``) or reads them from a file; ``worker`` is a process that opens,
runs and measures models (``worker_main`` its other side); ``reference`` asks the original and
``verify`` holds a candidate against its answers (``distance``); ``timing`` turns paired runs into
a ratio with bounds; ``selection`` keeps the groups of rewrites that pay, within a budget
(``comparison``).
"""
