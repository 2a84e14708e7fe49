"""Full content by id: records, turns, annotations, and the pages of the retrieval tool.

Floor 4. `conversation` and the retrieval tool call it; it reads through `runtime`.
"""
