"""The Hugging Face Hub: config.json, side files and weight sizes of a model, never its weights or its code.

What comes back is untrusted: its size, its nesting, its redirects and the time of the whole call are limited.
The server's environment decides where to ask and as whom; HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN are read at
each call.
"""

from __future__ import annotations

import datetime
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

from kvcore.catalogue.models import Checkpoint
from kvcore.errors import HubError, KvPlannerError
from kvcore.hub_index import IndexReader
from kvcore.hub_limits import InFlight, check_owner
from kvcore.model.config import MAX_CONFIG_BYTES, ModelConfig
from kvcore.units import MIB
from kvcore.untrusted import parse_json_object

if TYPE_CHECKING:
    import httpx2

_PART: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
ID: Final = re.compile(rf"{_PART}/{_PART}")
"""Source: huggingface_hub/utils/_validators.py:validate_repo_id (2.4), with the owner required."""
REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}")
DEFAULT_ENDPOINT: Final = "https://huggingface.co"
TIME_LIMIT_SECONDS: Final = 10.0
"""Of the whole call."""
SIZE_LIMIT_BYTES: Final = MAX_CONFIG_BYTES
"""Of one file."""
INDEX_LIMIT_BYTES: Final = 32 * MIB
"""Of model.safetensors.index.json, which names every tensor."""
MAX_REDIRECTS: Final = 4
INDEX: Final = "model.safetensors.index.json"
HF_QUANT_CONFIG: Final = "hf_quant_config.json"
OLD_GPTQ_CONFIG: Final = "quantize_config.json"
SENTENCE_TRANSFORMERS: Final = "modules.json"
LISTING: Final = "the Hub's description"
"""What errors call the Hub's own answer about a repository."""
_TRUE: Final = ("1", "true", "yes", "on")

DTYPE_BITS: Final[Mapping[str, int]] = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""Bits of one element. Source: the safetensors format, tensor.rs:Dtype.bitsize (0.6)."""
PACKED_DTYPES: Final = frozenset(("F4", "BOOL", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64"))
"""Of these one stored element is not one parameter: quantized checkpoints pack several into it."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubModel:
    """What the Hub says of a model."""

    id: str
    config: ModelConfig
    checkpoint: Checkpoint
    revision: str
    """The commit that was read; "" from the local cache."""
    fetched: datetime.datetime
    """In UTC."""


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
    lookup = _Lookup(
        model=model, revision=revision, endpoint=_endpoint(), deadline=time.monotonic() + time_limit_seconds,
        time_limit_seconds=time_limit_seconds,
    )  # fmt: skip
    return _within(lookup, asker, lambda: _from_hub(lookup))


def is_offline() -> bool:
    """Whether the server's environment forbids asking the Hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HubError("hub-unreachable", field="model", reason="HF_ENDPOINT is not an http address")
    return endpoint


@dataclass(frozen=True, kw_only=True)
class _Lookup:
    """One call's requests: to one origin, within one deadline."""

    model: str
    revision: str | None
    endpoint: str
    deadline: float
    time_limit_seconds: float

    def refused(self, code: str, **params: object) -> HubError:
        """The error `code` about this model."""
        return HubError(code, field="model", value=self.model, **params)

    def timeout(self) -> HubError:
        """The error that the time limit is over."""
        return self.refused("hub-timeout", limit=f"{self.time_limit_seconds:g}")

    def left(self) -> float:
        """Seconds until the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.timeout()
        return left

    def file(
        self, client: httpx2.Client, name: str, commit: str, limit: int = SIZE_LIMIT_BYTES
    ) -> dict[str, Any] | None:
        """A JSON file of the repository, or None where it has none."""
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(self.model, name, revision=commit, endpoint=self.endpoint)
        return self.json(client, url, name, limit)

    def json(
        self, client: httpx2.Client, url: str, name: str, limit: int = SIZE_LIMIT_BYTES
    ) -> dict[str, Any] | None:
        """The JSON object at `url`, or None where there is nothing."""
        with self._read_within_limits():
            text = self._text(client, url, name, limit)
        return None if text is None else _parsed(self.model, name, text, limit)

    @contextmanager
    def _read_within_limits(self) -> Iterator[None]:
        import httpx2

        try:
            yield
        except httpx2.TimeoutException:
            raise self.timeout() from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self.refused("hub-unreachable", reason=type(error).__name__) from None

    def index_size(self, client: httpx2.Client, commit: str) -> int | None:
        """`metadata.total_size` of the shards' index, None without one that is usable; reads no further than that."""
        from huggingface_hub import hf_hub_url

        reader = IndexReader()
        url = hf_hub_url(self.model, INDEX, revision=commit, endpoint=self.endpoint)
        with self._read_within_limits():
            self._take(client, url, INDEX, INDEX_LIMIT_BYTES, reader.feed)
        return reader.total_size

    def _text(self, client: httpx2.Client, url: str, name: str, limit: int) -> str | None:
        body = bytearray()

        def keep(piece: bytes) -> bool:
            body.extend(piece)
            return False

        is_there = self._take(client, url, name, limit, keep)
        return body.decode("utf-8", "replace") if is_there else None

    def _take(
        self, client: httpx2.Client, url: str, name: str, limit: int, feed: Callable[[bytes], bool]
    ) -> bool:
        """Feeds what is at `url` until it ends or nothing more is needed; whether there is anything."""
        for _ in range(MAX_REDIRECTS):
            with client.stream("GET", url, timeout=self.left()) as response:
                if response.has_redirect_location:
                    url = self._redirected(url, response.headers["location"])
                    continue
                if self._is_there(response, name):
                    self._feed(response, name, limit, feed)
                    return True
                return False
        raise self.refused("hub-unreachable", reason="too many redirects")

    def _redirected(self, url: str, location: str) -> str:
        """Renamed repositories redirect on the same host; anywhere else nobody is followed, least with a token."""
        target = urljoin(url, location)
        if urlsplit(target)[:2] != urlsplit(self.endpoint)[:2]:
            raise self.refused("hub-unreachable", reason="it redirects to another host")
        return target

    def _is_there(self, response: httpx2.Response, name: str) -> bool:
        # Without a token the Hub answers 401 for what does not exist and for what is private alike.
        status, code = response.status_code, response.headers.get("x-error-code", "")
        if status == 200:
            return True
        if status == 403 or code == "GatedRepo":
            raise self.refused("hub-gated")
        if code == "EntryNotFound" or (status == 404 and name and not code):
            return False
        if status in (401, 404):
            raise self.refused("hub-not-found")
        raise self.refused("hub-unreachable", reason=f"HTTP status {status}")

    def _feed(self, response: httpx2.Response, name: str, limit: int, feed: Callable[[bytes], bool]) -> None:
        size = 0
        for piece in response.iter_bytes():
            size += len(piece)
            if size > limit:
                raise self.refused("hub-too-large", file=name or LISTING, limit=f"{limit // MIB} MiB")
            if feed(piece):
                return
            self.left()


IN_FLIGHT: Final = InFlight()
"""Of the process."""


def _within(lookup: _Lookup, asker: str, call: Callable[[], Answer]) -> Answer:
    # In a thread, because looking up a host name knows no time limit; its place is free when it has really ended.
    answers: list[Answer] = []
    failures: list[Exception] = []

    def run() -> None:
        try:
            answers.append(call())
        except Exception as error:  # the caller's thread raises it again
            failures.append(error)
        finally:
            IN_FLIGHT.leave(asker)

    IN_FLIGHT.enter(lookup.model, asker)
    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(lookup.time_limit_seconds)
    if failures:
        raise failures[0]
    if not answers:
        raise lookup.timeout()
    return answers[0]


def _from_hub(lookup: _Lookup) -> HubModel:
    import httpx2  # here and not above: it takes longer to import than all of kvcore

    token = os.environ.get("HF_TOKEN", "").strip()
    headers = {"user-agent": "kvcore", "accept-encoding": "identity"} | (
        {"authorization": f"Bearer {token}"} if token else {}
    )
    with httpx2.Client(headers=headers, follow_redirects=False) as client:
        address = f"{lookup.endpoint}/api/models/{lookup.model}"
        if lookup.revision is not None:
            address += "/revision/" + lookup.revision.replace("/", "%2F")
        facts = lookup.json(client, address, "")
        if facts is None:
            raise lookup.refused("hub-not-found")
        name = facts.get("id")
        if isinstance(name, str) and name != lookup.model:
            check_owner(name)
        commit = _commit(lookup, facts)
        names = _file_names(facts)
        config = lookup.file(client, "config.json", commit)
        if config is None:
            raise lookup.refused("hub-no-config")
        sides = {
            name: lookup.file(client, name, commit) if name in names else None
            for name in (HF_QUANT_CONFIG, OLD_GPTQ_CONFIG)
        }
        checkpoint = _counted(facts.get("safetensors"))
        if checkpoint.total_size is None and INDEX in names:
            size = _indexed_size(lookup, client, commit)
            checkpoint = replace(checkpoint, total_size=size)
        if SENTENCE_TRANSFORMERS in names:
            checkpoint = replace(checkpoint, sentence_transformers=True)
    return _model(lookup.model, config, sides, checkpoint, commit)


def _from_cache(model: str, revision: str | None) -> HubModel:
    """What the local Hub cache has, for servers that are offline on purpose."""
    from huggingface_hub import try_to_load_from_cache

    files: dict[str, dict[str, Any] | None] = {}
    for name in ("config.json", HF_QUANT_CONFIG, OLD_GPTQ_CONFIG):
        path = try_to_load_from_cache(model, name, revision=revision)
        text = Path(path).read_text("utf-8", "replace") if isinstance(path, str) else None
        files[name] = None if text is None else _parsed(model, name, text, SIZE_LIMIT_BYTES)
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
        read = ModelConfig.from_mapping(config, sides[HF_QUANT_CONFIG])
    except KvPlannerError as error:
        raise _malformed(model, "config.json", str(error)) from None
    now = datetime.datetime.now(datetime.UTC)
    return HubModel(id=model, config=read, checkpoint=checkpoint, revision=revision, fetched=now)


def _parsed(model: str, name: str, text: str, limit: int) -> dict[str, Any]:
    try:
        return parse_json_object(text, max_bytes=limit)
    except KvPlannerError as error:
        raise _malformed(model, name, str(error)) from None


def _malformed(model: str, name: str, reason: str) -> HubError:
    return HubError("hub-malformed", field="model", value=model, file=name or LISTING, reason=reason)


def _commit(lookup: _Lookup, facts: Mapping[str, Any]) -> str:
    commit = facts.get("sha") or lookup.revision or "main"
    if not isinstance(commit, str) or REVISION.fullmatch(commit) is None or ".." in commit:
        raise _malformed(lookup.model, "", "it has no commit")
    return commit


def _file_names(facts: Mapping[str, Any]) -> frozenset[str]:
    siblings = facts.get("siblings")
    if not isinstance(siblings, list):
        return frozenset()
    return frozenset(str(sibling.get("rfilename")) for sibling in siblings if isinstance(sibling, dict))


def _counted(safetensors: Any) -> Checkpoint:
    """Sizes from the elements by dtype that the Hub counted in the headers of the weight files."""
    counts = safetensors.get("parameters") if isinstance(safetensors, dict) else None
    if not isinstance(counts, dict) or not all(_is_positive(count) for count in counts.values()):
        return Checkpoint()
    bits = sum(count * DTYPE_BITS.get(dtype, 0) for dtype, count in counts.items())
    return Checkpoint(
        total_size=bits // 8 or None if counts.keys() <= DTYPE_BITS.keys() else None,
        total_parameters=None if PACKED_DTYPES & counts.keys() else sum(counts.values()) or None,
    )


def _indexed_size(lookup: _Lookup, client: httpx2.Client, commit: str) -> int | None:
    """`metadata.total_size` of the shards' index; without a usable index the size stays unknown."""
    try:
        return lookup.index_size(client, commit)
    except HubError as error:
        if error.code != "hub-too-large":
            raise
        return None


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
