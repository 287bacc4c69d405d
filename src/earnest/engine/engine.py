"""What the verbs share: the database, what this process knows to do, its bells and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from earnest.engine.doorbells import Doorbells
from earnest.engine.effects import Effect
from earnest.engine.instances import Instance
from earnest.engine.kinds import Kinds
from earnest.engine.settings import EngineSettings
from earnest.store.database import Database


@dataclass
class Engine:
    """One process's view of the engine. It decides nothing; the verbs do."""

    database: Database
    kinds: Kinds = field(default_factory=Kinds)
    effects: dict[str, Effect[Any, Any]] = field(default_factory=dict)
    settings: EngineSettings = field(default_factory=EngineSettings)
    instance: Instance = field(default_factory=Instance)
    bells: Doorbells = field(init=False)

    def __post_init__(self) -> None:
        self.bells = Doorbells(self.database)

    def effect(self, kind: str) -> Effect[Any, Any] | None:
        """The effect of that kind: one that an app provided, else one made of a known class."""
        found = self.effects.get(kind)
        if found is None:
            known = Effect.find(kind)
            found = None if known is None else known()
            if found is not None:
                self.effects[kind] = found
        return found

    def effect_kinds(self) -> list[str]:
        return sorted({*self.effects, *Effect.known_kinds()})
