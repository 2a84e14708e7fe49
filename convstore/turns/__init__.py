"""Work on one turn at a time: the lease that a worker holds on it, and what it may write meanwhile."""
