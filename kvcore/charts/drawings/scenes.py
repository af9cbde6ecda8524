"""Moving pictures: a few scenes one after another, each a sentence and a drawing; what is new in a scene moves in."""

from __future__ import annotations

from msgspec import Struct

from kvcore.charts.drawings.drawing import Drawing


class Scene(Struct, frozen=True, kw_only=True):
    """One state of a moving picture."""

    caption: str
    """What happens in it, in one or two sentences."""
    drawing: Drawing


class Picture(Struct, frozen=True, kw_only=True):
    """A moving picture about one plan."""

    scenes: tuple[Scene, ...]
    remember: str
    """The sentence that stays, said with the last scene."""

    def at(self, number: int) -> Scene:
        """The scene of a number from 0 on; a number beyond the last is the last."""
        return self.scenes[min(max(number, 0), len(self.scenes) - 1)]
