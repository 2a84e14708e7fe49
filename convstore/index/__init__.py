"""The search index as data: words of a text, windows of a message, ranking, and immutable segments.

Floor 1, pure. The `search` room reads the log into it, `mongo.segments` stores segments. Windows, statistics and scores
are the same if a conversation is read from the log or from segments.
"""
