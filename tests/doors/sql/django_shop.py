"""A Django project of one model, on the database that a test gives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.db import connections, models  # type: ignore[import-untyped]

if not settings.configured:
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
        INSTALLED_APPS=[],
        USE_TZ=True,
    )
    django.setup()


async def in_django(url: str, work: Callable[[], Any]) -> Any:
    """Runs it on this database in a thread, as a view without asyncio does; connections are the
    thread's own."""

    def closing() -> Any:
        try:
            return work()
        finally:
            connections.close_all()

    _use_database(url)
    return await asyncio.to_thread(closing)


def _use_database(url: str) -> None:
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    connections.settings["default"].update(
        NAME=parts.path.lstrip("/"),
        USER=parts.username,
        HOST=query["host"],
        PORT=query["port"],
    )


class Order(models.Model):  # type: ignore[misc]
    number: Any = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "shop"
        db_table = "orders"
