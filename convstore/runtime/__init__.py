"""Share the conversation cache, log reader, refreshes of heads, clock and threads among the use cases.

Floor 3, on `mongo`. Everything cached here can be read again from the database.
"""
