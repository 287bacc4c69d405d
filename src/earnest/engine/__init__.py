"""The promises: what may happen, when, and to whom.

Each module is one family of verbs; each verb is a function that takes the `Engine` first and runs
one transaction. `engine.py` holds what the verbs share, and nothing else.
"""
