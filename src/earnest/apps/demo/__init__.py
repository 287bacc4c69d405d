"""The demo: run kinds that show each promise of the engine against the simulator."""
