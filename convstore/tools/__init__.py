"""Tools for agents: they read results back, search conversations, and number the sources of other tools.

Floor 5. They define schemas and parse lenient input, but do not import the store; `store.agent_tools` binds them to
one.
"""
