"""Verification of stored data: check it for damage and repair everything that can be derived from the log.

Floor 4. `store.verify` calls it. There is one module for each kind of document; `verifier` walks the database.
"""
