"""The read path: the messages that the next model call gets.

Floor 4. `loader` reads entries, `rule` decides by `sizes` what the view shows, `decoder` restores its messages,
`render` builds the list, and `provider_rules` adapts it to one provider.
"""
