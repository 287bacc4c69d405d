"""Shipped for tests of Earnest and of programs that use it.

`simulator` stands for the outside world, so that effects can be counted where they happen.
"""
