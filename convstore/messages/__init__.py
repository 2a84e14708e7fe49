"""A LangChain message as data: encoding, compression, tool calls, token counts and text.

Pure functions on floor 0, used by every room above. It imports only `values` and `exceptions`.
"""
