"""Public models, policies and scopes, with the checks of what callers pass.

Floor 0, used by every room. It imports only `exceptions`.
"""
