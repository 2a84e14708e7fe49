"""The read path: the messages that the next model call gets.

Floor 4. `loader` and `past` begin a `load`, which reads the log. `rule` decides by `sizes` what the view shows,
`decoder` restores its messages, `render` builds the list, and `provider_rules` adapts it to one provider.
"""
