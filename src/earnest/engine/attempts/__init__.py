"""A worker's work on a run: the context of a handler, from its claim to its settled ending."""
