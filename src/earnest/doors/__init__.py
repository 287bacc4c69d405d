"""The doors: they translate between the outside and the engine's verbs, and decide nothing."""
