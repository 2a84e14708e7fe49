"""Public models, policies and scopes, with the checks of arguments.

Floor 0, used by every package. It imports only `exceptions`.
"""
