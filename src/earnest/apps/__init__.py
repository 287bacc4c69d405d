"""Whole systems on top of the engine. None knows another; the engine knows none."""
