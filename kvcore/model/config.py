"""A model's config.json as untrusted input: checked once, read by key, compared by content.

Readers never touch the raw JSON: `text` and `vision` are views that know the nested layouts, the class defaults
and the spelling variants, and that raise a coded error naming the key when a value is missing or of a wrong type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """config.json, with the quantization side file where the checkpoint has one.

    Two configs are equal when their JSON is; the hash is taken from `text`, so that readers can be cached.
    """

    text: str
    """Canonical JSON of config.json."""
    hf_quant_config_text: str = ""
    raw: Mapping[str, Any] = field(compare=False, repr=False, default_factory=dict)
    hf_quant_config: Mapping[str, Any] | None = field(compare=False, repr=False, default=None)

    @classmethod
    def from_mapping(cls, raw: Mapping[str, Any], hf_quant_config: Mapping[str, Any] | None = None) -> ModelConfig:
        """A config from parsed JSON.

        Example:
            >>> ModelConfig.from_mapping({"model_type": "llama"}).raw["model_type"]
            'llama'
        """
        return cls(
            text=json.dumps(raw, sort_keys=True, separators=(",", ":")),
            hf_quant_config_text=json.dumps(hf_quant_config, sort_keys=True) if hf_quant_config else "",
            raw=raw,
            hf_quant_config=hf_quant_config,
        )
