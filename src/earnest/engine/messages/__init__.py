"""Messages: what is told to the outside, and what the outside tells."""
