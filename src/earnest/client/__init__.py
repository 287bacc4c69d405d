"""Earnest over HTTP, for programs elsewhere: `earnest.Client`, and `earnest.SyncClient` for those
without an event loop.

It knows the API and nothing behind it: no engine, no database. What it promises on top: a request
is sent again until it is known what came of it, always with the same key; a stream goes on where it
broke off, with each event once and in order; a refusal is raised as the class that says what was
refused.
"""
