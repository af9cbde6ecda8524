"""Adds a model to the catalogue, and refuses on doubt.

    python tools/add_model.py Qwen/Qwen3-32B                                     # from the Hub
    python tools/add_model.py my/model --config FOLDER_OR_FILE --source "where it was read"
    python tools/add_model.py my/tune --same-as Qwen/Qwen3-32B --source "why it has the same shape"
        --set max_position_embeddings=131072 --total-size BYTES --total-parameters N

The entry has the facts that a family reader needs, in our own schema (kvcore/catalogue/models.py). It is refused
when no reader reads the config exactly, when a part of the model is not counted, or when what is counted from it is
more than 2 % off the published size. An entry that is there already is written anew.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvcore.base.errors import KvPlannerError  # noqa: E402
from kvcore.base.untrusted import parse_json_object  # noqa: E402
from kvcore.catalogue import find_model  # noqa: E402
from kvcore.catalogue.models import FOLDER, Checkpoint, entry_file_name  # noqa: E402
from kvcore.engine.setting import DTYPE_BYTES  # noqa: E402
from kvcore.hub import ID, SENTENCE_TRANSFORMERS, fetch_model  # noqa: E402
from kvcore.model.config import ModelConfig  # noqa: E402
from kvcore.planning import Plan, plan  # noqa: E402
from kvcore.scenario import Measured, Scenario, SpeculativeConfig  # noqa: E402
from tools.catalogue_entry import entry_text  # noqa: E402

TOLERANCE = 0.02
"""Checkpoints store a tied embedding twice, or leave out buffers: more than this is a mistake in the reader."""
UNQUANTIZED = "unquantized"


class Found(NamedTuple):
    """Facts about the model, before any check."""

    config: ModelConfig
    checkpoint: Checkpoint
    source: str


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 1 when the model was refused."""
    arguments = _parser().parse_args(argv)
    try:
        found = _find(arguments)
        reason = "" if ID.fullmatch(arguments.id) else "an id is owner/name"
        reason = reason or doubt(found.config, found.checkpoint)
    except KvPlannerError as error:
        reason = f"{error.code}: {error}; {error.next_step}"
    if reason:
        print(f"{arguments.id} refused: {reason}", file=sys.stderr)
        return 1
    path = FOLDER / entry_file_name(arguments.id)
    today = datetime.date.today()
    text = entry_text(arguments.id, found.config, found.checkpoint, found.source, today)
    path.write_text(text, encoding="utf-8")
    print(path)
    return 0


def doubt(config: ModelConfig, checkpoint: Checkpoint) -> str:
    """A reason not to add the model; empty for none."""
    planned = plan(
        Scenario(model="", config=config, checkpoint=checkpoint, measured=Measured(available_kv_gib=1e5))
    )
    if planned.architecture.is_assumed:
        return f"no reader knows {planned.architecture.read_as}"
    if planned.architecture.uncounted:
        return f"not counted: {', '.join(planned.architecture.uncounted)}"
    published = checkpoint.total_size
    if published is None and checkpoint.total_parameters and planned.quantization.method == UNQUANTIZED:
        published = checkpoint.total_parameters * DTYPE_BYTES[planned.resolved.dtype]
    if published and all(abs(stored / published - 1) > TOLERANCE for stored in _stored_bytes(planned)):
        return f"{planned.parameter_bytes_per_rank:,} bytes counted, {published:,} bytes published"
    return ""


def _stored_bytes(planned: Plan) -> Iterator[int]:
    """Possible sizes of a checkpoint of that model: with or without a second copy of a tied embedding, the output head
    that a pooling model does without, or the draft layers that are only loaded for speculative decoding."""
    language = planned.scenario.config.language
    embedding = (language.optional_integer("vocab_size") or 0) * (
        language.optional_integer("hidden_size") or 0
    )
    embedding_bytes = embedding * DTYPE_BYTES[planned.resolved.dtype]
    head_bytes = planned.weights.dropped_head
    for extra in (0, embedding_bytes, -head_bytes, *_draft_bytes(planned.scenario)):
        yield planned.parameter_bytes_per_rank + extra


def _draft_bytes(scenario: Scenario) -> Iterator[int]:
    speculative = SpeculativeConfig(method="mtp", num_speculative_tokens=1)
    try:
        yield plan(replace(scenario, speculative_config=speculative)).weights.drafts
    except KvPlannerError:
        return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("id", help="owner/name, as on the Hub")
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--config", type=Path, help="config.json, or the folder with it and its side files")
    origin.add_argument("--same-as", metavar="ID", help="a bundled model of the same shape")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a key that differs")
    parser.add_argument("--source", help="where the facts were read; not with the Hub")
    parser.add_argument("--revision", help="branch, tag or commit on the Hub")
    parser.add_argument("--total-size", type=int, help="bytes of the tensors in the safetensors files")
    parser.add_argument("--total-parameters", type=int)
    parser.add_argument(
        "--sentence-transformers",
        action="store_true",
        help="the repository ships modules.json; seen by itself on the Hub and in a folder",
    )
    return parser


def _find(arguments: argparse.Namespace) -> Found:
    given = Checkpoint(
        total_size=arguments.total_size,
        total_parameters=arguments.total_parameters,
        sentence_transformers=_ships_modules(arguments),
    )
    if arguments.config is None and arguments.same_as is None:
        answer = fetch_model(arguments.id, revision=arguments.revision)
        source = f"huggingface.co/{arguments.id} at {answer.revision[:12]}"
        return Found(_with(answer.config, arguments.set), answer.checkpoint, source)
    if not arguments.source:
        _parser().error("--config and --same-as need --source")
    if arguments.same_as is not None:
        config = find_model(arguments.same_as).config
        source = f"values of {arguments.same_as}: {arguments.source}"
        return Found(_with(config, arguments.set), given, source)
    return Found(_with(_from_files(arguments.config), arguments.set), given, arguments.source)


def _ships_modules(arguments: argparse.Namespace) -> bool | None:
    lies_there = arguments.config is not None and (arguments.config / SENTENCE_TRANSFORMERS).is_file()
    return True if arguments.sentence_transformers or lies_there else None


def _with(config: ModelConfig, assignments: Sequence[str]) -> ModelConfig:
    raw = dict(config.raw)
    for assignment in assignments:
        key, _, value = assignment.partition("=")
        *parents, name = key.split(".")
        section = raw
        for parent in parents:
            section[parent] = dict(section.get(parent) or {})
            section = section[parent]
        section[name] = json.loads(value)
    return ModelConfig.from_mapping(raw, config.hf_quant_config)


def _from_files(path: Path) -> ModelConfig:
    folder = path if path.is_dir() else path.parent
    raw: Mapping[str, Any] = _read(folder / "config.json" if path.is_dir() else path) or {}
    sides = {
        name: _read(folder / name) if path.is_dir() else None
        for name in ("hf_quant_config.json", "quantize_config.json")
    }
    old_gptq = sides["quantize_config.json"]
    if old_gptq is not None and "quantization_config" not in raw:
        raw = {**raw, "quantization_config": {"quant_method": "gptq", **old_gptq}}
    return ModelConfig.from_mapping(raw, sides["hf_quant_config.json"])


def _read(path: Path) -> dict[str, Any] | None:
    return parse_json_object(path.read_text("utf-8")) if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
