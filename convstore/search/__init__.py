"""Search: reads a conversation's log into searchable parts, ranks its messages and cuts snippets.

Floor 4; `conversation` and the retrieval tool use it. The rules are in `index`.
"""
