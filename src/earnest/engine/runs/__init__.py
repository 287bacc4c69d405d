"""A run and who owns it: submitted, leased, moved, cancelled, retried."""
