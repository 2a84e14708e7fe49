"""Integrations with frameworks, each in a module that needs the framework's extra.

Floor 7.
"""
