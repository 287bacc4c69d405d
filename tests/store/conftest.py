"""Fixtures of the store's tests."""

from __future__ import annotations

from tests.sql_shop import shop

__all__ = ["shop"]
