"""Adds a model to the catalogue, from a Hub id or from a config file, and refuses on doubt.

    python tools/add_model.py Qwen/Qwen3-32B
    python tools/add_model.py my/model --config config.json --source "where it was read" [--hf-quant-config FILE]
                              [--total-size BYTES] [--total-parameters N]

The entry holds the facts that a family reader needs, in our own schema (kvcore/catalogue/models.py). It is refused
when no reader reads the config exactly, when a part of the model is not counted, or when the weights that are
counted from it are more than 2 % off the checkpoint's own size.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcore.catalogue.models import FOLDER, Checkpoint, entry_file_name, entry_text
from kvcore.errors import KvPlannerError
from kvcore.hub import fetch_model
from kvcore.memory.weights import weight_bytes
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import read_quantization
from kvcore.scenario import Parallel

TOLERANCE = 0.02
"""Checkpoints store a tied embedding twice, or leave out buffers: more than this is a mistake in the reader."""


def doubt(config: ModelConfig, checkpoint: Checkpoint) -> str:
    """Why the model should not be added; empty when nothing speaks against it."""
    try:
        architecture = read_architecture(config)
        quantization = read_quantization(config, None)
        counted = weight_bytes(architecture, quantization, Parallel(), architecture.dtype, 0).parameters
    except KvPlannerError as error:
        return f"{error.code}: {error}; {error.next_step}"
    if architecture.uncounted:
        return f"not counted: {', '.join(architecture.uncounted)}"
    stored = checkpoint.total_size
    if stored and abs(counted / stored - 1) > TOLERANCE:
        return f"{counted:,} bytes counted, {stored:,} bytes in the checkpoint"
    return ""


def main() -> int:
    """Exit status 1 when the model was refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("id")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--hf-quant-config", type=Path)
    parser.add_argument("--source")
    parser.add_argument("--total-size", type=int)
    parser.add_argument("--total-parameters", type=int)
    arguments = parser.parse_args()
    if arguments.config is None:
        found = fetch_model(arguments.id)
        config, checkpoint = found.config, found.checkpoint
        source = f"huggingface.co/{arguments.id} at {found.revision}"
    else:
        if not arguments.source:
            parser.error("--config needs --source")
        config = ModelConfig.from_mapping(_read(arguments.config), _read(arguments.hf_quant_config))
        checkpoint = Checkpoint(total_size=arguments.total_size, total_parameters=arguments.total_parameters)
        source = arguments.source
    reason = doubt(config, checkpoint)
    if reason:
        print(f"{arguments.id} refused: {reason}", file=sys.stderr)
        return 1
    path = FOLDER / entry_file_name(arguments.id)
    path.write_text(
        entry_text(arguments.id, config, checkpoint, source, datetime.date.today()), encoding="utf-8"
    )
    print(path)
    return 0


def _read(path: Path | None) -> Mapping[str, Any] | None:
    return None if path is None else json.loads(path.read_text("utf-8"))


if __name__ == "__main__":
    sys.exit(main())
