"""Functions on single LangChain messages: encoding, compression, tool calls, token counts and text.

Pure functions on floor 0, used by every package above. They import only `values` and `exceptions`.
"""
