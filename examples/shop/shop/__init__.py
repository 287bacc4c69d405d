"""A small shop that gives money back."""
