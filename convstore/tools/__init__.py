"""Tools for agents: the retrieval tool and the wrapper that numbers a tool's sources.

Floor 5. They know schemas and lenient input, not the store; `agent` binds them to one.
"""
