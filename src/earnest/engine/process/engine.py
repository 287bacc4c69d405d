"""What the verbs share: the database, what this process knows to do, its bells and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from earnest.domain.errors import SettingInvalid
from earnest.engine.process.doorbells import Doorbells
from earnest.engine.process.effects import Effect, require_effect
from earnest.engine.process.inboxes import Inboxes
from earnest.engine.process.instances import Instance
from earnest.engine.process.kinds import Kinds
from earnest.engine.process.metrics import Metrics
from earnest.engine.process.sealing import Sealer
from earnest.engine.process.settings import EngineSettings
from earnest.store.blobs import Blobs
from earnest.store.database import Database


@dataclass
class Engine:
    """One process's view of the engine. It decides nothing; the verbs do."""

    database: Database
    kinds: Kinds = field(default_factory=Kinds)
    effects: dict[str, Effect[Any, Any]] = field(default_factory=dict)
    settings: EngineSettings = field(default_factory=EngineSettings)
    instance: Instance = field(default_factory=Instance)
    inboxes: Inboxes = field(default_factory=Inboxes)
    sealer: Sealer = field(default_factory=Sealer)
    metrics: Metrics = field(default_factory=Metrics)
    bells: Doorbells = field(init=False)
    # Where the bytes of artifacts are; a process that was given no place has none.
    blobs: Blobs | None = None
    blobs_marked: bool = field(default=False, init=False)
    # Effects of which it was told that what needs them is left to other processes.
    left_to_others: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.bells = Doorbells(self.database)

    def effect(self, kind: str) -> Effect[Any, Any] | None:
        """The effect of that kind: one that an app provided, else one made of a known class."""
        if kind not in self.effects:
            known = Effect.find(kind)
            made = None if known is None else known.make()
            if made is None:
                return None
            self.effects[kind] = made
        return self.effects[kind]

    def effect_kinds(self) -> list[str]:
        """The effects that this process can act for."""
        known = {*self.effects, *Effect.known_kinds()}
        return sorted(kind for kind in known if self.effect(kind) is not None)

    def effect_of(self, effect: Effect[Any, Any] | type[Effect[Any, Any]]) -> Effect[Any, Any]:
        """The instance to use where a handler named a class or brought its own instance. A kind has
        one: a doubt is settled through the one that the call was made through. Raises
        `SettingInvalid`, also for what is no effect."""
        require_effect(effect)
        if not isinstance(effect, type):
            if self.effects.setdefault(effect.kind, effect) is not effect:
                raise SettingInvalid(
                    f"{effect.kind} has another instance in this process; name the class "
                    f"{type(effect).__name__} and give its one instance to the app: "
                    f"app.effect({type(effect).__name__}(...))"
                )
            return effect
        found = self.effect(effect.kind)
        if found is None:
            raise SettingInvalid(
                f"{effect.__name__} cannot be made without arguments; give the app an instance: "
                f"app.effect({effect.__name__}(...))"
            )
        return found
