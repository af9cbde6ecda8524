"""Side files of a checkpoint about the storage of its weights, as they are kept with its config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

KIND: Final = "model_quant_type"
CACHE_KIND: Final = "kv_cache_type"
FACTS: Final = (KIND, CACHE_KIND, "group_size", "version")
WEIGHTS: Final = (".weight", ".weight_packed")
OTHER_EXPERT: Final = re.compile(r"\.experts\.[1-9][0-9]*\.")


def is_modelslim(side_file: Mapping[str, Any] | None) -> bool:
    """Whether a side file is ModelSlim's quant_model_description.json.

    Example:
        >>> is_modelslim({"model_quant_type": "W8A8"}), is_modelslim({"quantization": {}})
        (True, False)
    """
    return side_file is not None and isinstance(side_file.get(KIND), str)


def condensed(side_file: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A side file without entries that change nothing: in ModelSlim's, tensors that are no weights, and all experts
    but the first; a model has hundreds.

    Example:
        >>> condensed({"model_quant_type": "W8A8", "a.experts.0.w1.weight": "W8A8", "a.experts.7.w1.weight": "W8A8",
        ...            "a.experts.0.w1.weight_scale": "W8A8"})
        {'model_quant_type': 'W8A8', 'a.experts.0.w1.weight': 'W8A8'}
    """
    if side_file is None or not is_modelslim(side_file):
        return side_file
    return {
        name: value
        for name, value in side_file.items()
        if name in FACTS or (name.endswith(WEIGHTS) and OTHER_EXPERT.search(name) is None)
    }
