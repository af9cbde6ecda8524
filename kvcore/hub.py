"""The Hugging Face Hub: config.json, side files and safetensors sizes of a model, never its weights or its code.

HF_ENDPOINT and HF_HUB_OFFLINE are read at each call; a token comes only from the server's environment (HF_TOKEN).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import httpx2 as httpx
from huggingface_hub import hf_hub_url, try_to_load_from_cache

from kvcore.catalogue.models import Checkpoint
from kvcore.errors import HubError, ScenarioError
from kvcore.model.config import ModelConfig
from kvcore.untrusted import parse_json_object

ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
DEFAULT_ENDPOINT: Final = "https://huggingface.co"
TIME_LIMIT_SECONDS: Final = 10.0
"""Of the whole call."""
SIZE_LIMIT_BYTES: Final = 2 << 20
"""Of one file. The largest config.json in the catalogue, a list of unquantized modules, has 0.7 MB."""
MAX_REDIRECTS: Final = 4
SIDE_FILES: Final = ("hf_quant_config.json", "quantize_config.json")
_TRUE: Final = ("1", "true", "yes", "on")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubModel:
    """What the Hub says of a model."""

    id: str
    config: ModelConfig
    checkpoint: Checkpoint
    revision: str
    """The commit that was read; "" from the local cache."""


def fetch_model(model: str, *, time_limit_seconds: float = TIME_LIMIT_SECONDS) -> HubModel:
    """config.json, quantization side file and checkpoint size of a model on the Hub.

    Raises HubError: hub-invalid-id, hub-not-found, hub-gated, hub-no-config, hub-offline, hub-unreachable,
    hub-timeout, hub-too-large, hub-malformed.
    """
    if ID.fullmatch(model) is None or ".." in model:
        raise HubError("hub-invalid-id", field="model", value=model)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        return _from_cache(model)
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_ENDPOINT
    with httpx.Client(follow_redirects=False) as client:
        session = _Session(
            client=client, model=model, endpoint=endpoint, deadline=time.monotonic() + time_limit_seconds
        )
        facts = session.json(f"{endpoint}/api/models/{model}", "the model's page") or {}
        config_text = session.text(hf_hub_url(model, "config.json", endpoint=endpoint), "config.json")
        if config_text is None:
            raise HubError("hub-no-config", field="model", value=model)
        names = {
            sibling.get("rfilename") for sibling in facts.get("siblings", ()) if isinstance(sibling, dict)
        }
        side_texts = {
            name: session.text(hf_hub_url(model, name, endpoint=endpoint), name)
            for name in SIDE_FILES
            if name in names
        }
        checkpoint = _checkpoint(facts, session, names)
    revision = facts.get("sha")
    return HubModel(
        id=model,
        config=_config(model, config_text, side_texts),
        checkpoint=checkpoint,
        revision=revision[:40] if isinstance(revision, str) else "",
    )


@dataclass(frozen=True, kw_only=True)
class _Session:
    """One call's requests, within one deadline."""

    client: httpx.Client
    model: str
    endpoint: str
    deadline: float

    def json(self, url: str, name: str) -> dict[str, Any] | None:
        text = self.text(url, name)
        return None if text is None else _parsed(self.model, name, text)

    def text(self, url: str, name: str) -> str | None:
        """The body of `url`, None where there is no such file."""
        try:
            return self._text(url, name)
        except httpx.TimeoutException:
            raise self._timeout() from None
        except httpx.HTTPError as error:
            raise HubError("hub-unreachable", field="model", reason=type(error).__name__) from None

    def _text(self, url: str, name: str) -> str | None:
        for _ in range(MAX_REDIRECTS):
            token = os.environ.get("HF_TOKEN", "")
            headers = {"authorization": f"Bearer {token}"} if token else {}
            with self.client.stream("GET", url, headers=headers, timeout=self._left()) as response:
                if response.is_redirect:
                    url = self._redirected(url, response.headers.get("location", ""))
                    continue
                if not self._is_there(response, name):
                    return None
                return self._body(response, name)
        raise HubError("hub-unreachable", field="model", reason="too many redirects")

    def _redirected(self, url: str, location: str) -> str:
        """Renamed repositories redirect on the same host; anywhere else nobody is followed, least with a token."""
        target = urljoin(url, location)
        if urlsplit(target)[:2] != urlsplit(self.endpoint)[:2]:
            raise HubError("hub-unreachable", field="model", reason="it redirects to another host")
        return target

    def _is_there(self, response: httpx.Response, name: str) -> bool:
        status, code = response.status_code, response.headers.get("x-error-code", "")
        if status < 300:
            return True
        if status == 403 or code == "GatedRepo":
            raise HubError("hub-gated", field="model", value=self.model)
        if code == "EntryNotFound" or (status == 404 and name != "the model's page"):
            return False
        if status in (401, 404):
            raise HubError("hub-not-found", field="model", value=self.model)
        raise HubError("hub-unreachable", field="model", reason=f"HTTP status {status}")

    def _body(self, response: httpx.Response, name: str) -> str:
        chunks: list[bytes] = []
        size = 0
        for chunk in response.iter_bytes():
            size += len(chunk)
            if size > SIZE_LIMIT_BYTES:
                limit = f"{SIZE_LIMIT_BYTES >> 20} MiB"
                raise HubError("hub-too-large", field="model", value=self.model, file=name, limit=limit)
            chunks.append(chunk)
            self._left()
        return b"".join(chunks).decode("utf-8", "replace")

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self._timeout()
        return left

    def _timeout(self) -> HubError:
        return HubError("hub-timeout", field="model", limit=f"{TIME_LIMIT_SECONDS:g}")


def _from_cache(model: str) -> HubModel:
    """What the local Hub cache has, for servers that are offline on purpose."""
    texts: dict[str, str | None] = {}
    for name in ("config.json", *SIDE_FILES):
        path = try_to_load_from_cache(model, name)
        texts[name] = Path(path).read_text("utf-8", "replace") if isinstance(path, str) else None
    config_text = texts.pop("config.json")
    if config_text is None:
        raise HubError("hub-offline", field="model")
    return HubModel(id=model, config=_config(model, config_text, texts), checkpoint=Checkpoint(), revision="")


def _config(model: str, text: str, side_texts: Mapping[str, str | None]) -> ModelConfig:
    config = _parsed(model, "config.json", text)
    sides = {name: _parsed(model, name, body) for name, body in side_texts.items() if body is not None}
    old_gptq = sides.get("quantize_config.json")
    if old_gptq is not None and "quantization_config" not in config:
        config["quantization_config"] = {"quant_method": "gptq", **old_gptq}
    return ModelConfig.from_mapping(config, sides.get("hf_quant_config.json"))


def _parsed(model: str, name: str, text: str) -> dict[str, Any]:
    try:
        return parse_json_object(text)
    except ScenarioError as error:
        raise HubError("hub-malformed", field="model", value=model, file=name, reason=str(error)) from None


def _checkpoint(facts: Mapping[str, Any], session: _Session, names: set[Any]) -> Checkpoint:
    """Parameters from the Hub's own count, bytes from the index of the shards."""
    safetensors = facts.get("safetensors")
    total = safetensors.get("total") if isinstance(safetensors, dict) else None
    size = None
    index = "model.safetensors.index.json"
    if index in names:
        try:
            table = session.json(hf_hub_url(session.model, index, endpoint=session.endpoint), index) or {}
        except HubError as error:
            if error.code not in ("hub-too-large", "hub-malformed"):
                raise
            table = {}
        metadata = table.get("metadata")
        size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return Checkpoint(total_size=_positive(size), total_parameters=_positive(total))


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
