"""A config.json in a link: as it is where it is short, deflated where it is long, and named as missing beyond that.

config={"model_type":…}         readable
config.z=eNqrVsosS81TslJQ…      the same text, zlib and base64url
config.left_out=true            too long even so: the page says so to whoever opens the link
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from kvcore.errors import ScenarioError
from kvcore.kept import kept
from kvcore.model.config import ModelConfig

MAX_PLAIN_CHARACTERS: Final = 2000
"""Of the readable form, percent-encoded."""
MAX_CONFIG_CHARACTERS: Final = 6000
"""Of either form; proxies cut request lines at 8 KiB."""
MAX_PACKED_CHARACTERS: Final = 32 << 10
"""Of what is unpacked at all."""
MAX_UNPACKED_BYTES: Final = 1 << 20
PACKED: Final = ".z"
LEFT_OUT: Final = ".left_out"
_BASE64: Final = re.compile(r"[A-Za-z0-9_-]*")


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


def pack(text: str) -> str:
    """`text` deflated, with a checksum, in letters that a link takes as they are.

    Example:
        >>> unpack(pack('{"model_type": "llama"}'), "config")
        '{"model_type": "llama"}'
    """
    return base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")


def unpack(text: str, field: str) -> str:
    """The text that `pack` made this of; reads at most MAX_UNPACKED_BYTES, whatever it would inflate to.

    Raises ScenarioError `input-too-large`, or `unreadable-packed-config` for what is damaged or cut short.
    """
    if len(text) > MAX_PACKED_CHARACTERS:
        raise ScenarioError("input-too-large", field=field, limit=f"{MAX_PACKED_CHARACTERS >> 10} KiB")
    if _BASE64.fullmatch(text) is None:
        raise ScenarioError("unreadable-packed-config", field=field)
    inflater = zlib.decompressobj()
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        unpacked = inflater.decompress(raw, MAX_UNPACKED_BYTES + 1)
        if len(unpacked) > MAX_UNPACKED_BYTES:
            raise ScenarioError("input-too-large", field=field, limit=f"{MAX_UNPACKED_BYTES >> 20} MiB")
        if not inflater.eof:
            raise ScenarioError("unreadable-packed-config", field=field)
        return unpacked.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        raise ScenarioError("unreadable-packed-config", field=field) from None
