"""Write views in the formats of OpenAI's and Anthropic's APIs, and read streamed replies; also Pydantic AI's messages.

Pure functions on floor 1. They import no SDK: its objects are read by their `model_dump`, and requests are plain dicts.
"""
