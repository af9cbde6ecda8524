"""Look-ups on the Hub for a server: each answer is kept for a while, in so many bytes, and asked for once at a time.

What the Hub says of a model is the same for every visitor, so answers are shared. What it has not is kept briefly:
whoever asks again and again costs one question a minute, and a model that has just been published is found.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kvcore.errors import HubError
from kvcore.hub import HubModel, fetch_model
from kvcore.hub_limits import check_owner
from kvcore.kept import size_of

KEPT_SECONDS: Final = 6 * 3600.0
REFUSED_SECONDS: Final = 60.0
UNREACHED_SECONDS: Final = 10.0
"""After a time limit or a broken connection."""
UNREACHED: Final = frozenset(("hub-timeout", "hub-unreachable"))
NEVER_KEPT: Final = frozenset(
    ("hub-busy", "hub-off", "hub-owner-not-allowed", "hub-offline", "hub-invalid-id")
)
MAX_BYTES: Final = 64 << 20
REFUSAL_BYTES: Final = 2000


@dataclass(slots=True)
class Answer:
    """What the Hub said, and until when it counts; being asked for while `is_ready` is not set."""

    model: HubModel | None = None
    error: HubError | None = None
    until: float = 0.0
    bytes: int = REFUSAL_BYTES
    is_ready: threading.Event = field(default_factory=threading.Event)

    def given(self) -> HubModel:
        """The model. Raises the HubError."""
        if self.error is not None:
            # A new one each time: what was raised refers to the frames of whoever it was raised to.
            facts = {name: text for name, text in self.error.params.items() if name != "value"}
            raise HubError(self.error.code, field=self.error.field, value=self.error.value, **facts)
        assert self.model is not None
        return self.model


class Lookups:
    """Answers of the Hub, for all who ask."""

    def __init__(
        self,
        fetch: Callable[..., HubModel] = fetch_model,
        most_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._most_bytes, self._clock = fetch, most_bytes, clock
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._going: dict[str, Answer] = {}
        self.bytes = 0

    def look_up(self, model: str, *, asker: str) -> HubModel:
        """The Hub's model of that id. Raises HubError as `fetch_model` does."""
        check_owner(model)
        with self._lock:
            answer = self._answers.get(model)
            if answer is not None and answer.until > self._clock():
                self._answers.move_to_end(model)
                return answer.given()
            going = self._going.get(model)
            if going is None:
                answer = self._going[model] = Answer()
        if going is not None:
            going.is_ready.wait()
            return going.given()
        assert answer is not None
        return self._ask(model, asker, answer)

    def clear(self) -> None:
        """Forgets every answer."""
        with self._lock:
            self._answers.clear()
            self.bytes = 0

    def _ask(self, model: str, asker: str, answer: Answer) -> HubModel:
        try:
            answer.model = self._fetch(model, asker=asker)
            answer.until = self._clock() + KEPT_SECONDS
            config = answer.model.config
            answer.bytes = REFUSAL_BYTES + size_of((config.text, config.raw, config.hf_quant_config))
        except HubError as error:
            answer.error = error.with_traceback(None)
            error.__context__ = None
            if error.code not in NEVER_KEPT:
                seconds = UNREACHED_SECONDS if error.code in UNREACHED else REFUSED_SECONDS
                answer.until = self._clock() + seconds
        except BaseException:
            answer.error = HubError("hub-unreachable", field="model", value=model, reason="internal error")
            raise
        finally:
            self._keep(model, answer)
            answer.is_ready.set()
        return answer.given()

    def _keep(self, model: str, answer: Answer) -> None:
        with self._lock:
            del self._going[model]
            old = self._answers.pop(model, None)
            self.bytes -= old.bytes if old is not None else 0
            if answer.until and answer.bytes <= self._most_bytes:
                self._answers[model] = answer
                self.bytes += answer.bytes
            while self.bytes > self._most_bytes:
                self.bytes -= self._answers.popitem(last=False)[1].bytes


LOOKUPS: Final = Lookups()
"""Of the process."""
