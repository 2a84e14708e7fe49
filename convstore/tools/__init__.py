"""Tools for agents: they read results back, search conversations, and number the sources of other tools.

Floor 5. They know schemas and lenient input, not the store; `store.agent_tools` binds them to one.
"""
