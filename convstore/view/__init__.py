"""The read path: the messages that the next model call gets.

Floor 4. The loader reads entries, `budget` chooses where the view begins, `render` builds its messages, and
`provider_rules` adapts them to one provider.
"""
