"""A person's decision about one exact request: asked for, decided, run out of time."""
