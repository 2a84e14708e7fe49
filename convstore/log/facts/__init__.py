"""The facts of entries: everything that an entry records besides messages, sources and totals.

Each kind is one module with its value, stored form, look-up values and checks. `table` registers all kinds.
"""
