"""The Hugging Face Hub: config.json, side files and weight sizes of a model, never its weights or its code; for a class
without a reader, the headers of its weight files.

Answers are the same for every visitor, so they are cached for all, bounded in time and bytes, and a model that several
ask for is fetched once. "Not found" is cached for a minute: repeated questions cost one request a minute, and a model
that has just been published is found soon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cachetools import TLRUCache, TTLCache
from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.errors import HubError, KvPlannerError
from kvcore.base.kept import size_of
from kvcore.catalogue.models import Checkpoint
from kvcore.hub.requests import (
    INDEX,
    TIME_LIMIT_SECONDS,
    Lookup,
    check_owner,
    is_off,
    is_offline,
    malformed,
    parsed,
    within,
)
from kvcore.model.config import ModelConfig
from kvcore.model.families import find_name, is_planned
from kvcore.model.headers import DTYPE_BITS

_PART: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
ID: Final = re.compile(rf"{_PART}/{_PART}")
"""Source: huggingface_hub/utils/_validators.py:validate_repo_id (2.4), with the owner required."""
REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
HF_QUANT_CONFIG: Final = "hf_quant_config.json"
OLD_GPTQ_CONFIG: Final = "quantize_config.json"
MODELSLIM: Final = "quant_model_description.json"
MODELSLIM_LIMIT_BYTES: Final = 16 << 20
SIDE_FILES: Final = (HF_QUANT_CONFIG, MODELSLIM, OLD_GPTQ_CONFIG)
WEIGHTS: Final = re.compile(r"(?:pytorch_)?model(?:-\d{5}-of-\d{5})?\.safetensors")
"""Names of checkpoint files in transformers; consolidated ones are copies."""
SENTENCE_TRANSFORMERS: Final = "modules.json"

PACKED_DTYPES: Final = frozenset(("F4", "BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64"))
"""Dtypes in which one element may pack several parameters of a quantized checkpoint."""

KEPT_SECONDS: Final = 6 * 3600.0
REFUSED_SECONDS: Final = 60.0
UNREACHED_SECONDS: Final = 10.0
"""For a timeout or a broken connection."""
UNREACHED: Final = frozenset(("hub-timeout", "hub-unreachable"))
NEVER_KEPT: Final = frozenset(
    ("hub-busy", "hub-off", "hub-owner-not-allowed", "hub-offline", "hub-invalid-id")
)
MAX_BYTES: Final = 64 << 20
REFUSAL_BYTES: Final = 2000


class HubModel(Struct, frozen=True, kw_only=True):
    """A model as the Hub describes it."""

    id: str
    config: ModelConfig
    checkpoint: Checkpoint
    revision: str
    """The commit; "" if it was read from the local cache."""
    fetched: datetime.datetime
    """UTC."""


def fetch_model(
    model: str,
    *,
    revision: str | None = None,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
    asker: str = "",
) -> HubModel:
    """config.json, quantization side file and checkpoint size of a model on the Hub, asked for by `asker`.

    Raises HubError: hub-invalid-id, hub-invalid-revision, hub-not-found, hub-gated, hub-no-config, hub-offline,
    hub-off, hub-owner-not-allowed, hub-busy, hub-unreachable, hub-timeout, hub-too-large, hub-malformed.
    """
    if ID.fullmatch(model) is None or ".." in model or "--" in model:
        raise HubError("hub-invalid-id", field="model", value=model)
    if revision is not None and (REVISION.fullmatch(revision) is None or ".." in revision):
        raise HubError("hub-invalid-revision", field="model", value=revision)
    check_owner(model)
    if is_offline():
        return _from_cache(model, revision)
    lookup = Lookup(model, revision, time_limit_seconds)
    return within(lookup, asker, lambda: _from_hub(lookup))


def _from_hub(lookup: Lookup) -> HubModel:
    # Here and not above: huggingface_hub takes longer to import than all of kvcore.
    from kvcore.hub.client import use_bounded_client

    use_bounded_client()
    info = lookup.description()
    if isinstance(info.id, str) and info.id != lookup.model:
        check_owner(info.id)
    commit = info.sha or lookup.revision or "main"
    if not isinstance(commit, str) or REVISION.fullmatch(commit) is None or ".." in commit:
        raise malformed(lookup.model, "", "it has no commit")
    names = frozenset(str(sibling.rfilename) for sibling in info.siblings or ())
    config = lookup.file("config.json", commit)
    if config is None:
        raise lookup.refused("hub-no-config")
    sides = {name: _side_file(lookup, name, commit) if name in names else None for name in SIDE_FILES}
    checkpoint = _counted(info.safetensors and info.safetensors.parameters)
    if checkpoint.total_size is None and INDEX in names:
        checkpoint = replace(checkpoint, total_size=lookup.index_size(commit))
    if SENTENCE_TRANSFORMERS in names:
        checkpoint = replace(checkpoint, sentence_transformers=True)
    model = _model(lookup.model, config, sides, checkpoint, commit)
    return model if find_name(model.config) else _with_headers(lookup, model, names)


def _side_file(lookup: Lookup, name: str, commit: str) -> dict[str, Any] | None:
    """A side file. ModelSlim's names every tensor and has a limit of its own; above that it is left out."""
    if name != MODELSLIM:
        return lookup.file(name, commit)
    try:
        return lookup.file(name, commit, MODELSLIM_LIMIT_BYTES)
    except HubError as error:
        if error.code != "hub-too-large":
            raise
        return None


def _with_headers(lookup: Lookup, model: HubModel, names: frozenset[str]) -> HubModel:
    """The model with the headers of its weight files, from which a class without a reader is planned.

    Raises HubError if they cannot be read and the config alone is not enough.
    """
    weights = sorted(filter(WEIGHTS.fullmatch, names))
    if not weights:
        return model
    try:
        headers = lookup.headers(weights, model.revision)
    except KvPlannerError as error:
        if is_planned(model.config):
            return model
        raise (
            error if isinstance(error, HubError) else malformed(lookup.model, weights[0], str(error))
        ) from None
    return replace(
        model,
        config=dataclasses.replace(model.config, headers=headers),
        checkpoint=replace(model.checkpoint, total_size=model.checkpoint.total_size or headers.stored_bytes),
    )


def _from_cache(model: str, revision: str | None) -> HubModel:
    """The model in the local Hub cache, for servers that are offline on purpose."""
    from huggingface_hub import try_to_load_from_cache

    files: dict[str, dict[str, Any] | None] = {}
    for name in ("config.json", *SIDE_FILES):
        path = try_to_load_from_cache(model, name, revision=revision)
        text = Path(path).read_text("utf-8", "replace") if isinstance(path, str) else None
        files[name] = None if text is None else parsed(model, name, text)
    config = files["config.json"]
    if config is None:
        raise HubError("hub-offline", field="model")
    listed = try_to_load_from_cache(model, SENTENCE_TRANSFORMERS, revision=revision)
    checkpoint = Checkpoint(sentence_transformers=True if isinstance(listed, str) else None)
    return _model(model, config, files, checkpoint, "")


def _model(
    model: str,
    config: Mapping[str, Any],
    sides: Mapping[str, Mapping[str, Any] | None],
    checkpoint: Checkpoint,
    revision: str,
) -> HubModel:
    old_gptq = sides[OLD_GPTQ_CONFIG]
    if old_gptq is not None and "quantization_config" not in config:
        config = {**config, "quantization_config": {"quant_method": "gptq", **old_gptq}}
    try:
        read = ModelConfig.from_mapping(config, sides[HF_QUANT_CONFIG] or sides[MODELSLIM])
    except KvPlannerError as error:
        raise malformed(model, "config.json", str(error)) from None
    now = datetime.datetime.now(datetime.UTC)
    return HubModel(id=model, config=read, checkpoint=checkpoint, revision=revision, fetched=now)


def _counted(counts: object) -> Checkpoint:
    """Sizes from the numbers of elements by dtype, which the Hub counts in the headers of the weight files."""
    if not isinstance(counts, dict) or not all(type(count) is int and count > 0 for count in counts.values()):
        return Checkpoint()
    bits = sum(count * DTYPE_BITS.get(dtype, 0) for dtype, count in counts.items())
    return Checkpoint(
        total_size=bits // 8 or None if counts.keys() <= DTYPE_BITS.keys() else None,
        total_parameters=None if PACKED_DTYPES & counts.keys() else sum(counts.values()) or None,
    )


@dataclass(slots=True)
class Answer:
    """An answer of the Hub and the time until which it is valid; pending until `is_ready` is set."""

    model: HubModel | None = None
    error: HubError | None = None
    until: float = 0.0
    bytes: int = REFUSAL_BYTES
    is_ready: threading.Event = field(default_factory=threading.Event)

    def given(self) -> HubModel:
        """The model. Raises the HubError."""
        if self.error is not None:
            # A new one each time: a raised error refers to the frames of its caller.
            facts = {name: text for name, text in self.error.params.items() if name != "value"}
            raise HubError(self.error.code, field=self.error.field, value=self.error.value, **facts)
        assert self.model is not None
        return self.model


class Lookups:
    """Cached answers of the Hub, at most `most_bytes` of them."""

    def __init__(
        self,
        fetch: Callable[..., HubModel] = fetch_model,
        most_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._clock = fetch, clock
        self._lock = threading.Lock()
        self._answers: TLRUCache[str, Answer] = TLRUCache(
            most_bytes, lambda _, answer, now: answer.until, clock, getsizeof=lambda answer: answer.bytes
        )
        self._pending: dict[str, Answer] = {}

    @property
    def bytes(self) -> int:
        """Size of the answers."""
        return int(self._answers.currsize)

    def look_up(self, model: str, *, asker: str) -> HubModel:
        """The model with that id on the Hub. Raises HubError as `fetch_model` does."""
        check_owner(model)
        with self._lock:
            answer = self._answers.get(model) or self._pending.get(model)
            if answer is None:
                own = self._pending[model] = Answer()
        if answer is None:
            return self._ask(model, asker, own)
        answer.is_ready.wait()
        return answer.given()

    def clear(self) -> None:
        """Removes every answer."""
        with self._lock:
            self._answers.clear()

    def _ask(self, model: str, asker: str, answer: Answer) -> HubModel:
        try:
            answer.model = self._fetch(model, asker=asker)
            answer.until = self._clock() + KEPT_SECONDS
            config = answer.model.config
            answer.bytes += size_of((config.text, config.raw, config.hf_quant_config, config.headers))
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
            with self._lock:
                del self._pending[model]
                with contextlib.suppress(ValueError):  # larger than the whole cache
                    self._answers[model] = answer
            answer.is_ready.set()
        return answer.given()


LOOKUPS: Final = Lookups()
"""The cache of this process."""


# -- models that the catalogue has by their name alone --------------------------------------------------------------

ASKED_SECONDS: Final = 3600.0
"""How long the answer for such a model is kept, and nobody is asked after the Hub could not be reached."""
_UNREACHED: Final = ""
_asked: Final[TTLCache[tuple[str, object], HubModel | None]] = TTLCache(256, ASKED_SECONDS)
_asked_lock: Final = threading.Lock()


def better_than_by_name(model: str, fetch: Callable[[str], HubModel]) -> HubModel | None:
    """The Hub's own facts of a model of which the catalogue knows no more than the name; None where none can be had.

    A Hub that is not reached is left alone for an hour: such a model can be planned without.
    """
    if is_off():
        return None
    with _asked_lock:
        for key in ((model, fetch), (_UNREACHED, fetch)):
            if key in _asked:
                return _asked[key]
    found: HubModel | None = None
    key = model, fetch
    try:
        found = fetch(model)
    except HubError as error:
        if error.code in UNREACHED:
            key = _UNREACHED, fetch
    with _asked_lock:
        _asked[key] = found
    return found
