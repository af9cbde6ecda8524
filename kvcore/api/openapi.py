"""The API as OpenAPI 3.1: openapi.yaml, with the schemas of requests from the registry of flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from kvcore.flags.schema import request_schema
from kvcore.library import LARGEST_SIZE, MAX_NAMES, MAX_SIZES, VARIED
from kvcore.version import VERSION

FILE: Final = Path(__file__).with_name("openapi.yaml")


@cache
def openapi() -> bytes:
    """The document as it is served."""
    document = yaml.safe_load(FILE.read_text("utf-8"))
    document["info"]["version"] = VERSION
    own = {"Request": request_schema(), "SweepRequest": sweep_schema()}
    own["Request"].pop("$schema")  # the document itself names its dialect
    document["components"]["schemas"] |= own
    return json.dumps(document).encode()


def sweep_schema() -> dict[str, Any]:
    """The schema of a sweep: lists of ids and sizes, and the flags of a request that a sweep does not set itself.

    Example:
        >>> "max_model_len" in sweep_schema()["properties"], "accelerator" in sweep_schema()["properties"]
        (True, False)
    """
    flags: Mapping[str, Any] = request_schema()["properties"]
    ids = {"type": ["array", "null"], "items": {"type": "string"}, "maxItems": MAX_NAMES}
    sizes = {
        "type": ["array", "null"],
        "items": {"type": "integer", "minimum": 1, "maximum": LARGEST_SIZE},
        "minItems": 1,
        "maxItems": MAX_SIZES,
    }
    return {
        "title": "A sweep of KV Planner",
        "type": "object",
        "properties": {
            "models": {**ids, "description": "Catalogue ids; none for all"},
            "accelerators": {**ids, "description": "Catalogue ids; none for all"},
            "tensor_parallel_sizes": {**sizes, "default": [1, 2, 4, 8]},
            **{name: schema for name, schema in flags.items() if name not in VARIED},
        },
        "additionalProperties": False,
    }
