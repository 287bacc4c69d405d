"""Looking on without moving anything: why it stands, what changed code would break, is it fit."""
