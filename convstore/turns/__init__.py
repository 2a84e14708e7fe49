"""Hold the lease of a turn, and write to the turn under it."""
