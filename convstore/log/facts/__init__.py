"""The facts of entries: whatever an entry holds besides messages, sources and totals.

Each kind is one module, which has the value, its stored form, its look-up values, and its checks. `table` has all of
them.
"""
