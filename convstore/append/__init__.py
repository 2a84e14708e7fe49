"""Append to the log: check inputs, prepare a batch, compose its entry, write it; also turns and rewinds.

Floor 4. `conversation` calls the writer; the writer talks to `mongo` through the cache and reader of `runtime`.
"""
