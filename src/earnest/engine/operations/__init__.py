"""One effect on the outside world, at most once: intended, sent, recorded, looked for."""
