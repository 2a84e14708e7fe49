"""The read path: the messages that the next model call gets.

Floor 4. `loader` and `past` begin a `load`, which reads the log. `rule` uses `sizes` to plan which messages a view
shows, `decoder` restores them, `render` builds the list, and `provider_rules` adapts it to one provider.
"""
