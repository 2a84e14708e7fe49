"""What the store does, each a service on the repository and the rules; the facade puts them together.

Layer 4. Writing: `writer` appends, `rewinder` and `annotations` mark what was appended, `compactor` summarises,
`kept_summaries` has what it made, `directory` names and lists
conversations, `retention` ends them. Reading: `reader` fetches entries
and payloads, `loader` makes views, `records` gives messages, `turns` whole turns, `pager` and `passages` sources page
by page. `known` is what the store remembers of a conversation, `numbering` wraps tools, `sync` serves callers without a
loop. `verifier` looks whether all is whole, with `schema_check`, `conversation_check`, `log_check`, `live_check` and
`findings`. `parts` puts all of them together.
"""

__all__: list[str] = []
