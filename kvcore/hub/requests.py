"""Requests to the Hugging Face Hub and their limits: owners, number at once, time, and bytes of an answer.

Answers are untrusted: size, nesting, redirects and the time of the whole call are limited. The server's environment
sets endpoint and account; HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN are read at each call.

KVPLANNER_HUB=off               no requests
KVPLANNER_HUB=Qwen,meta-llama   models of these organisations and users only
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urljoin, urlsplit

from kvcore.base.errors import HubError, KvPlannerError
from kvcore.base.units import MIB
from kvcore.base.untrusted import parse_json_object
from kvcore.hub.readers import HEADER_LIMIT_BYTES, HeaderReader, IndexReader
from kvcore.model.config import MAX_CONFIG_BYTES
from kvcore.model.headers import MAX_CHARACTERS, Headers, HeadersReader

if TYPE_CHECKING:
    import httpx2

SWITCH: Final = "KVPLANNER_HUB"
OFF: Final = ("off", "0", "false", "no")
EVERYBODY: Final = ("", "on", "1", "true", "yes", "*")
DEFAULT_ENDPOINT: Final = "https://huggingface.co"
TIME_LIMIT_SECONDS: Final = 10.0
"""For the whole call."""
SIZE_LIMIT_BYTES: Final = MAX_CONFIG_BYTES
"""Largest file."""
INDEX_LIMIT_BYTES: Final = 32 * MIB
"""Largest model.safetensors.index.json, which names every tensor."""
MAX_REDIRECTS: Final = 4
MAX_AT_ONCE: Final = 16
"""Look-ups of the process; one that timed out counts until its connection is closed."""
MAX_OF_ONE: Final = 2
"""Look-ups of one session."""
HEADERS_LIMIT_BYTES: Final = MAX_CHARACTERS
"""All headers of a repository together."""
HEADERS_AT_ONCE: Final = 8
STORAGE_SCHEME: Final = "https"
STORAGE_HOSTS: Final = (".hf.co", ".huggingface.co")
"""Hosts of the Hub's weight files: requests for them may be redirected there, without the token."""
INDEX: Final = "model.safetensors.index.json"
LISTING: Final = "the Hub's description"
"""Name of the Hub's own answer about a repository, in errors."""
_TRUE: Final = ("1", "true", "yes", "on")

Answer = TypeVar("Answer")


def owners() -> frozenset[str] | None:
    """Owners whose models may be looked up, in lower case; empty: none, None: all."""
    written = os.environ.get(SWITCH, "").strip().lower()
    if written in EVERYBODY:
        return None
    if written in OFF:
        return frozenset()
    return frozenset(name.strip() for name in written.split(",") if name.strip())


def is_off() -> bool:
    """Whether the server makes no requests."""
    return owners() == frozenset()


def check_owner(model: str) -> None:
    """Raises HubError `hub-off` or `hub-owner-not-allowed` for a model that may not be looked up."""
    allowed = owners()
    if allowed is None:
        return
    if not allowed:
        raise HubError("hub-off", field="model", value=model)
    if model.partition("/")[0].lower() not in allowed:
        raise HubError("hub-owner-not-allowed", field="model", value=model, owners=", ".join(sorted(allowed)))


def is_offline() -> bool:
    """Whether the server's environment forbids requests to the Hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE


def _endpoint() -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise HubError("hub-unreachable", field="model", reason="HF_ENDPOINT is not an http address")
    return endpoint


class Lookup:
    """The requests of one look-up: to one origin, within one deadline."""

    def __init__(self, model: str, revision: str | None, time_limit_seconds: float) -> None:
        self.model, self.revision = model, revision
        self.time_limit_seconds = time_limit_seconds
        self._deadline = time.monotonic() + time_limit_seconds
        self._endpoint = _endpoint()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Opens the connection for all requests of the look-up."""
        import httpx2  # here and not above: it takes longer to import than all of kvcore

        token = os.environ.get("HF_TOKEN", "").strip()
        headers = {"user-agent": "kvcore", "accept-encoding": "identity"}
        own = headers | ({"authorization": f"Bearer {token}"} if token else {})
        with (
            httpx2.Client(headers=own, follow_redirects=False) as self._client,
            httpx2.Client(headers=headers, follow_redirects=False) as self._storage,
        ):
            yield

    def refused(self, code: str, **params: object) -> HubError:
        """The error `code` about this model."""
        return HubError(code, field="model", value=self.model, **params)

    def timeout(self) -> HubError:
        """The error for a passed deadline."""
        return self.refused("hub-timeout", limit=f"{self.time_limit_seconds:g}")

    def description(self) -> dict[str, Any] | None:
        """The Hub's description of the repository; None if there is none."""
        address = f"{self._endpoint}/api/models/{self.model}"
        if self.revision is not None:
            address += "/revision/" + self.revision.replace("/", "%2F")
        return self._json(address, "")

    def file(self, name: str, commit: str, limit: int = SIZE_LIMIT_BYTES) -> dict[str, Any] | None:
        """A JSON file of the repository; None if there is none."""
        return self._json(self._address(name, commit), name, limit)

    def index_size(self, commit: str) -> int | None:
        """`metadata.total_size` of the shards' index; None if it has no usable one. Reads no further than that."""
        reader = IndexReader()
        try:
            self._take(self._address(INDEX, commit), INDEX, INDEX_LIMIT_BYTES, reader.feed)
        except HubError as error:
            if error.code != "hub-too-large":
                raise
        return reader.total_size

    def headers(self, names: Sequence[str], commit: str) -> Headers:
        """The headers of safetensors files; no weights are read."""
        reader = HeadersReader()
        left = HEADERS_LIMIT_BYTES
        pool = ThreadPoolExecutor(HEADERS_AT_ONCE)
        try:
            answers = [pool.submit(self._header, name, commit) for name in names]
            for name, answer in zip(names, answers, strict=True):
                text = answer.result()
                left -= len(text)
                if left < 0:
                    raise self._too_large(name, HEADERS_LIMIT_BYTES)
                try:
                    reader.feed(text)
                except KvPlannerError as error:
                    raise malformed(self.model, name, str(error)) from None
        finally:
            pool.shutdown(cancel_futures=True)
        return reader.headers()

    def _header(self, name: str, commit: str) -> str:
        reader = HeaderReader()
        while not reader.is_whole:
            begun = len(reader.body)
            self._take(
                self._address(name, commit), name, HEADER_LIMIT_BYTES, reader.feed, (begun, reader.end - 1)
            )
            if reader.end > HEADER_LIMIT_BYTES:
                raise self._too_large(name, HEADER_LIMIT_BYTES)
            if len(reader.body) == begun:
                raise malformed(self.model, name, "it ends before its header does")
        return reader.text

    def _address(self, name: str, commit: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.model, name, revision=commit, endpoint=self._endpoint)

    def _json(self, url: str, name: str, limit: int = SIZE_LIMIT_BYTES) -> dict[str, Any] | None:
        body = bytearray()

        def keep(piece: bytes) -> bool:
            body.extend(piece)
            return False

        is_there = self._take(url, name, limit, keep)
        return parsed(self.model, name, body.decode("utf-8", "replace"), limit) if is_there else None

    def _take(
        self,
        url: str,
        name: str,
        limit: int,
        feed: Callable[[bytes], bool],
        span: tuple[int, int] | None = None,
    ) -> bool:
        """Feeds the content at `url` until it ends or no more is needed. False if there is nothing.

        `span` are the first and last byte to request of a weight file, which may lie on a storage host.
        """
        import httpx2

        ranged = {} if span is None else {"range": f"bytes={span[0]}-{span[1]}"}
        try:
            for _ in range(MAX_REDIRECTS):
                client = self._client if self._is_own(url) else self._storage
                with client.stream("GET", url, timeout=self._left(), headers=ranged) as response:
                    if response.has_redirect_location:
                        url = self._redirected(url, response.headers["location"], is_weights=span is not None)
                        continue
                    is_there = self._is_there(response, name)
                    if is_there:
                        self._feed(response, name, limit, feed)
                    return is_there
        except httpx2.TimeoutException:
            raise self.timeout() from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self.refused("hub-unreachable", reason=type(error).__name__) from None
        raise self.refused("hub-unreachable", reason="too many redirects")

    def _left(self) -> float:
        """Seconds until the deadline."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self.timeout()
        return left

    def _is_own(self, url: str) -> bool:
        return urlsplit(url)[:2] == urlsplit(self._endpoint)[:2]

    def _redirected(self, url: str, location: str, *, is_weights: bool) -> str:
        """The target of a redirect: on the same host for renamed repositories, on the Hub's storage for weights. Any
        other is refused, since the request may carry a token."""
        target = urljoin(url, location)
        parts = urlsplit(target)
        is_storage = parts.scheme == STORAGE_SCHEME and (parts.hostname or "").endswith(STORAGE_HOSTS)
        if not self._is_own(target) and not (is_weights and is_storage):
            raise self.refused("hub-unreachable", reason="it redirects to another host")
        return target

    def _is_there(self, response: httpx2.Response, name: str) -> bool:
        # Without a token the Hub answers 401 both for a missing and for a private repository.
        status, code = response.status_code, response.headers.get("x-error-code", "")
        if status in (200, 206):
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
                raise self._too_large(name, limit)
            if feed(piece):
                return
            self._left()

    def _too_large(self, name: str, limit: int) -> HubError:
        return self.refused("hub-too-large", file=name or LISTING, limit=f"{limit // MIB} MiB")


def parsed(model: str, name: str, text: str, limit: int = SIZE_LIMIT_BYTES) -> dict[str, Any]:
    """The JSON object of a file. Raises HubError `hub-malformed`."""
    try:
        return parse_json_object(text, max_bytes=limit)
    except KvPlannerError as error:
        raise malformed(model, name, str(error)) from None


def malformed(model: str, name: str, reason: str) -> HubError:
    """The error for a file with unusable content."""
    return HubError("hub-malformed", field="model", value=model, file=name or LISTING, reason=reason)


class InFlight:
    """Counts the look-ups in flight.

    Example:
        >>> going = InFlight(most=2, most_of_one=1)
        >>> going.enter("a/b", "session")
        >>> going.count
        1
    """

    def __init__(self, most: int = MAX_AT_ONCE, most_of_one: int = MAX_OF_ONE) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._lock = threading.Lock()
        self._askers: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Number of look-ups."""
        return self._askers.total()

    def enter(self, model: str, asker: str) -> None:
        """Counts one more for `asker`; "" has no limit of its own. Raises HubError `hub-busy`."""
        with self._lock:
            if self.count >= self._most or (asker and self._askers[asker] >= self._most_of_one):
                raise HubError("hub-busy", field="model", value=model)
            self._askers[asker] += 1

    def leave(self, asker: str) -> None:
        """Counts one less."""
        with self._lock:
            self._askers[asker] -= 1
            if not self._askers[asker]:
                del self._askers[asker]


IN_FLIGHT: Final = InFlight()
"""The look-ups of this process."""


def within(lookup: Lookup, asker: str, call: Callable[[], Answer]) -> Answer:
    """The result of `call`, within the time limit.

    Runs in a thread, because resolving a host name has no timeout; its place is free when the thread has ended.
    """
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
