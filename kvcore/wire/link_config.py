"""A config.json in a link: as it is where it is short, deflated where it is long, and named as missing beyond that.

config={"model_type":…}         readable
config.z=eNqrVsosS81TslJQ…      the same text, zlib and base64url
config.left_out=true            too long even so: the page says so to whoever opens the link
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from kvcore.base.kept import kept
from kvcore.base.untrusted import MAX_UNPACKED_BYTES, pack
from kvcore.model.config import ModelConfig

MAX_PLAIN_CHARACTERS: Final = 2000
"""Of the readable form, percent-encoded."""
MAX_CONFIG_CHARACTERS: Final = 6000
"""Of either form; proxies cut request lines at 8 KiB."""
PACKED: Final = ".z"
LEFT_OUT: Final = ".left_out"


@kept
def encode_config(config: ModelConfig, is_draft: bool = False) -> Mapping[str, str]:
    """The parameters that carry `config`, or the one that says that none does; a draft's has no side file."""
    texts = {"config": config.text}
    if config.hf_quant_config_text and not is_draft:
        texts["hf_quant_config"] = config.hf_quant_config_text
    if config.headers is not None and not is_draft:
        texts["headers"] = config.headers.text
    size = sum(map(len, texts.values()))
    if size <= MAX_PLAIN_CHARACTERS and len(urlencode(texts)) <= MAX_PLAIN_CHARACTERS:
        return texts
    if size <= MAX_UNPACKED_BYTES:
        packed = {f"{name}{PACKED}": pack(text) for name, text in texts.items()}
        if sum(map(len, packed.values())) <= MAX_CONFIG_CHARACTERS:
            return packed
    return {f"config{LEFT_OUT}": "true"}
