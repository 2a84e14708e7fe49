"""Rolling summaries of a stored conversation: when to compact, how, and the history of summaries.

Floor 5. The compactor reads through `view` and `runtime` and asks a summarizer from `summarization` or `chain`.
"""
