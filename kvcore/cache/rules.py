"""How the engine's cache planner behaves in one version: `planner.toml`, read strictly."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from packaging.version import Version

from kvcore.errors import CatalogueError


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannerRules:
    """One version's behaviour; each field is a table of planner.toml, which names its source."""

    hybrid_manager: bool
    """Layers of different kinds may keep block tables of their own."""
    global_groups: bool
    """Groups are made over all pipeline stages, every n-th layer; before, per worker and contiguous."""
    uniform_type_groups: bool
    """Layers of one kind with different page sizes share one group."""
    page_unification: str
    """none, blocks (larger blocks only), blocks-mamba (and padded states), blocks-mamba-attention."""
    full_allocation_fallback: bool
    """Where pages cannot be unified, windows beside MLA are allocated in full."""
    group_size_slack: float
    """The largest bucket sets the group size when it is less than this times the smallest."""
    promotion_aligns_blocks: bool
    """A window promoted to full attention takes the full layers' block size."""
    packed_groups: str
    """DeepSeek-V4: none, padded-tuples, padded-slots, layer-tuples, pattern-repeats."""
    fit_check: str
    """What one request needs: layers, first-group, first-group-projected, groups, groups-and-null-block."""
    override_counts_in_check: bool
    """num_gpu_blocks_override also replaces the memory that the check looks at."""
    reported_tokens: str
    """blocks, blocks-per-group, concurrency."""
    reported_concurrency: str
    """tokens, bytes, blocks."""
    single_group_reports_default_block: bool
    """One group: tokens are printed in the flag's block size, not the group's."""
    in_flight_batches: bool
    context_parallel_divides: bool
    encoder_tokens: str
    """Cross-attention is sized for: encoder, batch."""
    mamba_blocks: str
    """one, length, mode, mode-and-speculative, mode-without-all."""
    mamba2_checkpoint_blocks: int
    value_dimension: bool
    mla_block_alignment: int
    """Tokens that blocks of a hybrid MLA model are a multiple of; 0 follows the backend alone."""
    alignment_follows_backend: bool
    """Blocks of a hybrid model are a multiple of the backend's kernel block and of the asked block size."""
    state_blocks_check: bool
    """Full CUDA graphs need a block of recurrent state for each of max_num_seqs."""


@lru_cache(maxsize=256)
def planner_rules(version: Version) -> PlannerRules:
    """The rules that hold in `version`.

    Example:
        >>> planner_rules(Version("0.18.1")).group_size_slack
        1.5
    """
    tables = _tables()
    return PlannerRules(**{name: _value_at(entries, version) for name, entries in tables.items()})


@lru_cache(maxsize=1)
def _tables() -> dict[str, tuple[tuple[Version, Any], ...]]:
    text = resources.files("kvcore.cache").joinpath("planner.toml").read_text(encoding="utf-8")
    return read_rule_tables(tomllib.loads(text))


def read_rule_tables(raw: Mapping[str, Any]) -> dict[str, tuple[tuple[Version, Any], ...]]:
    """`planner.toml` as rule -> ((since, value), ...), oldest first.

    Raises CatalogueError for unknown or missing rules, and for a rule without source or first value.
    """
    names = {field.name for field in dataclasses.fields(PlannerRules)}
    if set(raw) != names:
        raise CatalogueError(
            "invalid-catalogue-entry",
            field="planner.toml",
            reason="unknown or missing " + ", ".join(sorted(set(raw) ^ names)),
        )
    tables = {}
    for name, table in raw.items():
        entries = {Version(key): value for key, value in table.items() if key != "source"}
        if not table.get("source") or Version("0.0") not in entries:
            raise CatalogueError(
                "invalid-catalogue-entry", field=f"planner.toml {name}", reason="source or 0.0 is missing"
            )
        tables[name] = tuple(sorted(entries.items()))
    return tables


def _value_at(entries: tuple[tuple[Version, Any], ...], version: Version) -> Any:
    found = entries[0][1]
    for since, value in entries:
        if since <= version:
            found = value
    return found
