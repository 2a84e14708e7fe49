"""Search: read a conversation's log into searchable parts, rank its messages and cut snippets.

Floor 4; `conversation` and the retrieval tool use it. The rules are in `index`.
"""
