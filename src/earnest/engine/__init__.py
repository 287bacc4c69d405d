"""The promises: what may happen, when, and to whom.

Each module is one family of verbs; each verb is a function that takes the `Engine` first and runs
one transaction. The rooms stand on each other, and none knows the one above it:

    inspection   looks on: why it stands, what changed code would break, is it fit
    streams      tells what happened to those who watch
    attempts     a worker's work on a run, from its claim to its settled ending
    operations   one effect on the outside world, at most once
    runs         a run and who owns it: submit, lease, move, cancel, retry
    process      what a process is: its engine, its kinds and effects, its bells

`app.py`, `blocking.py` and `loading.py`: what a user's program holds of all this, and is found by.
"""
