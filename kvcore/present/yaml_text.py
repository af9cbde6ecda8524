"""YAML as people edit it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


def yaml_text(document: Mapping[str, Any]) -> str:
    """The document in the order of its keys, block style."""
    text: str = yaml.dump(dict(document), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


class _PlainDumper(yaml.SafeDumper):
    """Writes a part that is used twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True
