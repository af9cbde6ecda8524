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
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from kvcore.base.errors import HubError, KvPlannerError, shorten
from kvcore.base.units import MIB
from kvcore.base.untrusted import check_json, parse_json_object
from kvcore.hub.readers import IndexReader
from kvcore.model.config import MAX_CONFIG_BYTES
from kvcore.model.headers import MAX_CHARACTERS, Headers, HeadersReader

if TYPE_CHECKING:  # when a look-up begins, and not before: they take longer to import than all of kvcore
    import httpx2
    from huggingface_hub import ModelInfo

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
MAX_REQUESTS: Final = 4
"""For one file: the first, and those to which redirects lead."""
MAX_AT_ONCE: Final = 16
"""Look-ups of the process; one that timed out counts until its connection is closed."""
MAX_OF_ONE: Final = 2
"""Look-ups of one session."""
HEADER_LIMIT_BYTES: Final = 8 * MIB
"""Largest header of one safetensors file."""
FIRST_BYTES: Final = 128 << 10
"""Size of the first request for a safetensors file: most headers are shorter."""
LENGTH_BYTES: Final = 8
"""Size of the length field in front of the header."""
HEADERS_LIMIT_BYTES: Final = MAX_CHARACTERS
"""All headers of a repository together."""
HEADERS_AT_ONCE: Final = 8
STORAGE_SCHEME: Final = "https"
STORAGE_HOSTS: Final = (".hf.co", ".huggingface.co")
"""Hosts of the Hub's weight files: requests for them may be redirected there, without the token."""
HEADERS: Final = {"user-agent": "kvcore", "accept-encoding": "identity"}
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


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one request may ask for and take: `BoundedClient` keeps to it."""

    lookup: Lookup
    name: str
    """The file; "" for the Hub's description."""
    limit: int
    """Bytes of the answer."""
    span: tuple[int, int] | None = None
    """First and last byte of a weight file, which may lie on a storage host."""
    feed: Callable[[bytes], bool] | None = None
    """Takes the body piece by piece, and says when no more is needed; without it the body is kept."""

    def allow(self, request: httpx2.Request) -> None:
        """Limits the time of a request to what is left. A redirect stays on the same host (a renamed repository), or
        leads a weight file to the Hub's storage, without the token; any other is refused.
        """
        left = self.lookup.left()
        request.extensions["timeout"] = {"connect": left, "read": left, "write": left, "pool": left}
        request.headers.pop("cookie", None)
        url = urlsplit(str(request.url))
        if url[:2] == urlsplit(self.lookup.endpoint)[:2]:
            return
        request.headers.pop("authorization", None)
        is_storage = url.scheme == STORAGE_SCHEME and (url.hostname or "").endswith(STORAGE_HOSTS)
        if self.span is None or not is_storage:
            raise self.lookup.refused("hub-unreachable", reason="it redirects to another host")

    def body_of(self, response: httpx2.Response) -> bytes:
        """The body as sent, counted while it arrives: no encoding was asked for, and none is unpacked."""
        begin, last = self.span or (0, self.limit)
        if (
            response.status_code == 206
        ):  # 200: the server ignores the range and sends the file from its beginning
            begin, last = 0, last - begin
        body, size = bytearray(), 0
        for piece in response.iter_raw():
            size += len(piece)
            if size > self.limit:
                raise self.lookup.too_large(self.name, self.limit)
            if self.feed is None:
                body += piece
            if size > last or (self.feed is not None and self.feed(piece)):
                break
            self.lookup.left()
        if self.span is None:
            check_json(body.decode("utf-8", "replace"))
        return bytes(body[begin : last + 1])


BOUNDS: Final[ContextVar[Bounds | None]] = ContextVar("BOUNDS", default=None)
"""Those of the request that this thread makes; None outside a look-up."""


class Lookup:
    """The requests of one look-up: to one origin, within one deadline, once `use_bounded_client` has been called.

    huggingface_hub makes them, with a client that keeps to `Bounds`. Three things it would take in ways that no client
    can bound: for these its addresses, headers, client and errors are used, and the bytes are read here.

    - config.json and side files: `hf_hub_download` keeps every file on disk, tries for longer than the deadline, and
      fetches what lies in Xet storage with a client of its own.
    - The index of the weights: `get_safetensors_metadata` downloads and parses all of it, for one number.
    - The headers: `parse_safetensors_file_metadata` makes an object of every name and multiplies the sizes of every
      shape. One shape of 8 MiB takes it many minutes of a core, and nothing can stop it.

    Source: huggingface_hub/file_download.py:hf_hub_download, hf_api.py:HfApi.get_safetensors_metadata,
    utils/_safetensors.py:TensorInfo.__post_init__ (2.4).
    """

    def __init__(self, model: str, revision: str | None, time_limit_seconds: float) -> None:
        self.model, self.revision = model, revision
        self.time_limit_seconds = time_limit_seconds
        self._deadline = time.monotonic() + time_limit_seconds
        self.endpoint = _endpoint()
        self._token: str | Literal[False] = os.environ.get("HF_TOKEN", "").strip() or False

    def refused(self, code: str, **params: object) -> HubError:
        """The error `code` about this model."""
        return HubError(code, field="model", value=self.model, **params)

    def timeout(self) -> HubError:
        """The error for a passed deadline."""
        return self.refused("hub-timeout", limit=f"{self.time_limit_seconds:g}")

    def too_large(self, name: str, limit: int) -> HubError:
        """The error for more bytes than a file may have."""
        return self.refused("hub-too-large", file=name or LISTING, limit=f"{limit // MIB} MiB")

    def left(self) -> float:
        """Seconds until the deadline. Raises HubError `hub-timeout`."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self.timeout()
        return left

    def description(self) -> ModelInfo:
        """The Hub's description of the repository."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint, token=self._token, headers=HEADERS)
        with self._asking(name="", limit=SIZE_LIMIT_BYTES):
            return api.model_info(self.model, revision=self.revision)

    def file(self, name: str, commit: str, limit: int = SIZE_LIMIT_BYTES) -> dict[str, Any] | None:
        """A JSON file of the repository; None if there is none."""
        body = self._body(commit, name=name, limit=limit)
        return None if body is None else parsed(self.model, name, body.decode("utf-8", "replace"), limit)

    def index_size(self, commit: str) -> int | None:
        """`metadata.total_size` of the shards' index; None if it has no usable one. Reads no further than that."""
        reader = IndexReader()
        try:
            self._body(commit, name=INDEX, limit=INDEX_LIMIT_BYTES, feed=reader.feed)
        except HubError as error:
            if error.code != "hub-too-large":
                raise
        return reader.total_size

    def headers(self, names: Sequence[str], commit: str) -> Headers:
        """The headers of safetensors files; no weights are read."""
        reader = HeadersReader()
        pool = ThreadPoolExecutor(HEADERS_AT_ONCE)
        try:
            texts = pool.map(partial(self._header, commit), names)
            for name, text in zip(names, texts, strict=True):
                try:
                    reader.feed(text)
                except KvPlannerError as error:
                    if error.code == "input-too-large":
                        raise self.too_large(name, HEADERS_LIMIT_BYTES) from None
                    raise malformed(self.model, name, str(error)) from None
        finally:
            pool.shutdown(cancel_futures=True)
        return reader.headers()

    def _header(self, commit: str, name: str) -> str:
        """The JSON of one header.

        Source: the safetensors format, README.md: eight bytes with the header's length, then its JSON (0.6).
        """
        take = partial(self._body, commit, name=name, limit=HEADER_LIMIT_BYTES)
        body = take(span=(0, FIRST_BYTES - 1)) or b""
        end = LENGTH_BYTES + int.from_bytes(body[:LENGTH_BYTES], "little")
        if end > HEADER_LIMIT_BYTES:
            raise self.too_large(name, HEADER_LIMIT_BYTES)
        if LENGTH_BYTES <= len(body) < end:
            body += take(span=(len(body), end - 1)) or b""
        if len(body) < end:
            raise malformed(self.model, name, "it ends before its header does")
        return body[LENGTH_BYTES:end].decode("utf-8", "replace")

    def _body(self, commit: str, **bounds: Any) -> bytes | None:
        """A file of the repository within `bounds`; None if there is none."""
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            hf_raise_for_status,
        )

        with self._asking(**bounds) as asked:
            url = hf_hub_url(self.model, asked.name, revision=commit, endpoint=self.endpoint)
            ranged = {"range": "bytes={}-{}".format(*asked.span)} if asked.span else {}
            headers = build_hf_headers(token=self._token, headers=HEADERS | ranged)
            response = get_session().get(url, headers=headers)
            code = response.headers.get("x-error-code", "")
            if code == "EntryNotFound" or (response.status_code == 404 and not code):
                return None
            hf_raise_for_status(response)
            return response.content

    @contextmanager
    def _asking(self, **bounds: Any) -> Iterator[Bounds]:
        """Bounds the requests inside, and raises what goes wrong in them as HubError."""
        import httpx2
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

        asked = Bounds(lookup=self, **bounds)
        before = BOUNDS.set(asked)
        try:
            yield asked
        except HubError:
            raise
        except HfHubHTTPError as error:
            # Without a token the Hub answers 401 both for a missing and for a private repository.
            status = error.response.status_code
            if status == 403 or isinstance(error, GatedRepoError):
                raise self.refused("hub-gated") from None
            if status in (401, 404):
                raise self.refused("hub-not-found") from None
            raise self.refused("hub-unreachable", reason=f"HTTP status {status}") from None
        except httpx2.TimeoutException:
            raise self.timeout() from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self.refused("hub-unreachable", reason=type(error).__name__) from None
        except Exception as error:  # an answer that is no JSON, or not what the library expects
            raise malformed(self.model, asked.name, shorten(str(error))) from None
        finally:
            BOUNDS.reset(before)


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
