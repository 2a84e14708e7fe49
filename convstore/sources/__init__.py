"""Sources in tool results: detection, numbering, citations, and the stub that replaces a result in a view.

Pure functions on floor 1, built on `messages`. Used by `append`, `view`, `readback` and `tools`.
"""
