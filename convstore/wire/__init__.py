"""A view in the formats of OpenAI's and Anthropic's APIs, for loops that call a provider's SDK; Pydantic AI's messages.

Pure functions on floor 1. No SDK is imported: its objects are read by their `model_dump`, requests are plain dicts.
"""
