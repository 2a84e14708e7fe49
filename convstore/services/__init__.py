"""What the store does, each a service on the repository and the rules; the facade puts them together.

Layer 4. Writing: `writer` appends, each batch an `attempt`; `rewinder` and `annotations` mark what was appended,
`compactor` summarises, `kept_summaries` has what it made, `directory` names and lists conversations, `retention` ends
them. Reading: `reader` fetches entries and payloads, `loader` makes views, `records` gives messages, `turns` whole
turns, `pager`, `passages` and `pages` sources page by page. `known` is what the store remembers of a conversation and
`keeping` how much of it, `off_loop` keeps long work from the event loop, `numbering` wraps tools, `sync` serves
callers without a loop. `doctor` looks whether all is whole. `parts` puts all of them together.
"""

__all__: list[str] = []
