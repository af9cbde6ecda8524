"""JSON from outside, bounded before it is parsed."""

from __future__ import annotations

import json
from typing import Any, Final

from kvcore.errors import ScenarioError

MAX_JSON_BYTES: Final = 8 << 20
MAX_JSON_DEPTH: Final = 64


def parse_json_object(text: str, *, max_bytes: int = MAX_JSON_BYTES, field: str = "") -> dict[str, Any]:
    """One JSON object from untrusted text.

    NaN and Infinity are read as Python writes them: config.json files of state-space models have them.

    Raises ScenarioError `input-too-large`, `input-too-deep` or `invalid-json`, whatever the text, in time linear
    in its size.

    Example:
        >>> parse_json_object('{"model": "Qwen/Qwen3-32B"}')
        {'model': 'Qwen/Qwen3-32B'}
    """
    if len(text) > max_bytes:
        raise ScenarioError("input-too-large", field=field, limit=f"{max_bytes >> 20} MiB")
    if json_depth(text) > MAX_JSON_DEPTH:
        raise ScenarioError("input-too-deep", field=field, limit=MAX_JSON_DEPTH)
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ScenarioError("invalid-json", field=field, reason=str(error)) from None
    if not isinstance(parsed, dict):
        raise ScenarioError("invalid-json", field=field, reason="one JSON object is expected")
    return parsed


def json_depth(text: str) -> int:
    """How deep brackets nest, strings apart: counted before parsing, because the parser recurses.

    Example:
        >>> json_depth('{"a": ["[[["]}' + " " * 3 + "[" * 70)
        70
    """
    if text.count("[") + text.count("{") <= MAX_JSON_DEPTH:
        return 0
    depth = deepest = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest
