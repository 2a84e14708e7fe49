"""Conversations as a whole: information, listings, deletion, erasure and retention.

Floor 4. `store` and `conversation` call it.
"""
