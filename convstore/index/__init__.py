"""The search index as data: words of a text, windows of a message, ranking, and immutable segments.

Floor 1, pure. The `search` room reads the log into it, `mongo.segments` stores segments. A conversation that is scanned
and one that is read from segments give the same windows, statistics and scores.
"""
