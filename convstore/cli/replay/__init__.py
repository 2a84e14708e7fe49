"""The command ``convstore replay``: recorded conversations run through the store, with every promise asserted."""
