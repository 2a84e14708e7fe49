"""The log as data: entries, running totals, rows, rewinds, summaries, stored messages.

Pure rules on floor 1. Reading and writing the documents is the work of `mongo` and of the use cases above.
"""
