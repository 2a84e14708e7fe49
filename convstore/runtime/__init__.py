"""Shared by the use cases: the cache of conversations, the log reader, refreshes of heads, clock and threads.

Floor 3, on `mongo`. All cached data can be read again from the database.
"""
