"""The functions for Python programs: `plan`, `load_scenario` and `sweep`, as `import kvcore` offers them."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, overload

from msgspec import Struct

from kvcore import catalogue, planning
from kvcore.base.errors import ScenarioError, invalid
from kvcore.base.untrusted import utf8_text
from kvcore.engines.registry import engine_names
from kvcore.library.change import with_read
from kvcore.planning import Plan
from kvcore.scenario import Scenario
from kvcore.wire.fields import Json
from kvcore.wire.request import from_hub, parse_request, scenario_from_request

if TYPE_CHECKING:
    from kvcore.advice.sweep import SweptModel
    from kvcore.flags.typed import Flags, Request

SIZES: Final = (1, 2, 4, 8)
"""Tensor parallel sizes of a sweep."""
MAX_SIZES: Final = 16
LARGEST_SIZE: Final = 1024
MAX_NAMES: Final = 512
"""Most models, or accelerators, that a sweep may name."""
LEAST_CELLS: Final = 8192
"""Cells that are worth the start of another process."""
TURNS: Final = 4
"""Shares of the models that each process takes one after another."""
ALLOCATIONS_BETWEEN_COLLECTIONS: Final = 50_000
"""Seventy times Python's own: a plan leaves few circles, and each collection walks through all models."""
VARIED: Final = (
    "model",
    "config",
    "hf_quant_config",
    "headers",
    "checkpoint",
    "accelerator",
    "tensor_parallel_size",
    "measured",
)
"""Fields that a sweep sets itself or leaves out."""


@overload
def plan(scenario: Scenario | Plan, /, **flags: Unpack[Request]) -> Plan: ...


@overload
def plan(**flags: Unpack[Request]) -> Plan: ...


def plan(scenario: Scenario | Plan | None = None, /, **flags: Unpack[Request]) -> Plan:
    """The memory plan of one deployment: of a scenario, or of the fields of a request (docs/contract.md).

    Flags behind a scenario, or a plan, change it. A model that is not bundled is looked up on the Hugging Face Hub,
    unless HF_HUB_OFFLINE=1.

    Raises KvPlannerError with the code, the field and a next step. A deployment that does not fit is no error but a
    plan with its verdict.

    Example:
        >>> found = plan(model="Qwen/Qwen3-32B", accelerator="H100-80GB", tensor_parallel_size=2)
        >>> found.verdict.value
        'fits'
        >>> plan(found.scenario) == found, plan(found, kv_cache_dtype="fp8").cache.tokens > found.cache.tokens
        (True, True)
    """
    if scenario is None:
        return planning.plan(load_scenario(flags))
    return planning.plan(changed(scenario, flags))


def replace(given: Scenario | Plan, **flags: Unpack[Request]) -> Scenario:
    """A scenario with other flags, by their names and with the checks of a request; None takes the engine's default.

    Another card takes the engine that runs there. Raises KvPlannerError.

    Example:
        >>> start = load_scenario({"model": "Qwen/Qwen3-8B", "accelerator": "L4-24GB"})
        >>> replace(start, tensor_parallel_size=2, max_model_len="auto").parallel.tensor_parallel_size
        2
        >>> replace(start, tensor_parallel_size=0)
        Traceback (most recent call last):
        kvcore.base.errors.ScenarioError: tensor_parallel_size cannot be 0: it must lie between 1 and 1024
    """
    return changed(given, flags)


def changed(given: Scenario | Plan, flags: Mapping[str, object]) -> Scenario:
    """`replace` with flags as a mapping."""
    scenario = given.scenario if isinstance(given, Plan) else given
    if not isinstance(scenario, Scenario):
        raise invalid(
            "scenario", type(given).__name__, "it must be a Scenario or a Plan; load_scenario reads others"
        )
    if not flags:
        return scenario
    asked: dict[str, object] = {"model": scenario.model}
    if not ({"model", "config"} & flags.keys()):
        asked |= {"config": scenario.config.raw}
    if not ({"engine", "engine_version", "accelerator"} & flags.keys()):
        asked |= {"engine": scenario.engine, "engine_version": scenario.engine_version}
    elif "engine_version" in flags and not {"engine", "accelerator"} & flags.keys():
        asked |= {"engine": scenario.engine}
    read = scenario_from_request(_as_json(asked | dict(flags)), from_hub)
    return with_read(scenario, read, flags.keys())


def load_scenario(source: str | os.PathLike[str] | Mapping[str, object]) -> Scenario:
    """The scenario of a request, given as a mapping or as the path of a JSON file.

    Raises KvPlannerError, for a file that cannot be read too.

    Example:
        >>> load_scenario({"model": "Qwen/Qwen3-8B", "max_model_len": "auto"}).max_model_len
        -1
    """
    if isinstance(source, Mapping):
        return scenario_from_request(_as_json(source), from_hub)
    if not isinstance(source, str | os.PathLike):
        raise invalid("source", type(source).__name__, "it must be a mapping, or the path of a JSON file")
    return scenario_from_request(parse_request(utf8_text(bytes_of(source))), from_hub)


def bytes_of(path: str | os.PathLike[str]) -> bytes:
    """The content of a file. Raises ScenarioError `file-not-read`."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise ScenarioError("file-not-read", field="source", value=str(path), error=reason) from None


def sweep(
    *,
    models: Iterable[str] = (),
    accelerators: Iterable[str] = (),
    tensor_parallel_sizes: Sequence[int] = SIZES,
    **flags: Unpack[Flags],
) -> Iterator[SweptModel]:
    """Each of `models` on each of `accelerators` at each size, all with the same flags; catalogue ids, or none for all.

    Raises KvPlannerError; a combination that the engine refuses is a cell with its code.

    Example:
        >>> [swept] = sweep(models=["Qwen/Qwen3-32B"], accelerators=["H100-80GB"], max_model_len=8192)
        >>> [(cell.tensor_parallel_size, cell.verdict.value) for cell in swept.cells][:2]
        [(1, 'fits'), (2, 'fits')]
    """
    asked = asked_sweep(
        models=models, accelerators=accelerators, tensor_parallel_sizes=tensor_parallel_sizes, **flags
    )
    return asked.swept(asked.models)


def sweep_side_by_side(processes: int, **asked: Any) -> Generator[SweptModel, None, None]:
    """`sweep` with its models shared out among up to `processes` processes, for large sweeps; 0: one a CPU.

    Each process imports the calling program, which must therefore guard its own work by
    `if __name__ == "__main__":`.

    Raises KvPlannerError as `sweep`, and for a number of processes that is no whole number.
    """
    if type(processes) is not int or processes < 0:
        raise invalid("processes", processes, "it must be a whole number, or 0 for one on each CPU")
    whole = asked_sweep(**asked)
    workers = min(processes or cpus(), whole.cells // LEAST_CELLS)
    return whole.shared_out(workers) if workers > 1 else (found for found in whole.swept(whole.models))


def asked_sweep(
    *,
    models: Iterable[str] = (),
    accelerators: Iterable[str] = (),
    tensor_parallel_sizes: Sequence[int] = SIZES,
    **flags: object,
) -> AskedSweep:
    """A sweep, checked. Raises KvPlannerError for one that cannot be done.

    Example:
        >>> asked_sweep(models=["Qwen/Qwen3-8B"], accelerators=["L4-24GB", "H100-80GB"]).cells
        8
    """
    for name in VARIED:
        if name in flags:
            raise ScenarioError("unknown-field", field=name)
    sizes = checked_sizes(tensor_parallel_sizes)
    named = checked_names("models", models)
    known = [catalogue.find_model(name).id for name in named] or catalogue.model_ids()
    cards = [catalogue.find_accelerator(name) for name in checked_names("accelerators", accelerators)]
    asked = AskedSweep(
        request=_as_json({"model": known[0], **flags}),
        models=known,
        accelerators=[card.id for card in cards or catalogue.load_accelerators()],
        sizes=sizes,
    )
    scenario_from_request(asked.request)
    return asked


def checked_sizes(found: object) -> tuple[int, ...]:
    """The tensor parallel sizes of a sweep, each once. Raises ScenarioError.

    Example:
        >>> checked_sizes([8, 1, 8])
        (8, 1)
    """
    sizes = found if isinstance(found, Sequence) and len(found) <= MAX_SIZES else ()
    if not sizes or not all(type(size) is int and 1 <= size <= LARGEST_SIZE for size in sizes):
        raise invalid(
            "tensor_parallel_sizes",
            found,
            f"it must be a list of at most {MAX_SIZES} whole numbers from 1 to {LARGEST_SIZE}",
        )
    return tuple(dict.fromkeys(sizes))


def checked_names(field: str, found: object) -> tuple[str, ...]:
    """The models or accelerators that a sweep names, each once. Raises ScenarioError.

    Example:
        >>> checked_names("accelerators", iter(["L4-24GB"]))
        ('L4-24GB',)
    """
    # A text and a JSON object are iterables of text too, but no list of names.
    given = None if isinstance(found, str | bytes | Mapping) or not isinstance(found, Iterable) else found
    names = [] if given is None else [*islice(given, MAX_NAMES + 1)]
    if given is None or len(names) > MAX_NAMES or not all(isinstance(name, str) for name in names):
        raise invalid(field, names or found, f"it must be a list of at most {MAX_NAMES} catalogue ids")
    return tuple(dict.fromkeys(names))


def cpus() -> int:
    """Number of CPUs that this process may use: a container may be bound to some of them."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


class AskedSweep(Struct, frozen=True, kw_only=True):
    """A sweep, in a form that another process can be sent."""

    request: Json
    models: Sequence[str]
    accelerators: Sequence[str]
    sizes: Sequence[int]

    @property
    def cells(self) -> int:
        """Number of combinations."""
        return len(self.models) * len(self.accelerators) * len(self.sizes)

    def swept(self, models: Sequence[str]) -> Iterator[SweptModel]:
        """The rows of some of its models."""
        from kvcore.advice import sweep as rows

        entries = [catalogue.find_model(name) for name in models]
        cards = [catalogue.find_accelerator(name) for name in self.accelerators]
        return rows.sweep(scenario_from_request(self.request), entries, cards, tuple(self.sizes))

    def listed(self, models: Sequence[str]) -> list[SweptModel]:
        """The same as a list, which another process can send back."""
        return list(self.swept(models))

    def shared_out(self, workers: int) -> Generator[SweptModel, None, None]:
        """The rows of all models in their order, each of `workers` processes at some of them at a time."""
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        share = math.ceil(len(self.models) / (workers * TURNS))
        shares = [self.models[first : first + share] for first in range(0, len(self.models), share)]
        with ProcessPoolExecutor(
            workers,
            get_context("spawn"),
            initializer=gc.set_threshold,
            initargs=(ALLOCATIONS_BETWEEN_COLLECTIONS,),
        ) as pool:
            with _deaf():
                lists = pool.map(self.listed, shares)
            try:
                for found in lists:
                    yield from found
            except BaseException:  # Ctrl-C too: none of them is waited for
                for process in (getattr(pool, "_processes", None) or {}).values():
                    process.terminate()
                raise


@contextmanager
def _deaf() -> Iterator[None]:
    """Starts processes that Ctrl-C does not reach: it ends this one, which ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _as_json(request: Mapping[str, object]) -> Json:
    """`request` as it would come from a file, with the same bounds."""
    for name, value in request.items():
        try:
            json.dumps({name: value})
        except (TypeError, ValueError, RecursionError):
            raise invalid(
                str(name),
                type(value).__name__,
                "it must be what JSON can write: text, a number, true, false, a list or an object",
            ) from None
    return parse_request(json.dumps(dict(request)))


def catalogue_rows() -> dict[str, list[dict[str, Any]]]:
    """The rows of the catalogue, by kind: models, accelerators, engines."""
    from kvcore.controls.offers import engine_versions

    return {
        "models": [
            {
                "id": entry.id,
                "source": entry.source,
                "checked": entry.checked,
                "rank": entry.rank.value,
                **({"base": entry.base} if entry.base else {}),
            }
            for entry in map(catalogue.find_model, catalogue.known_ids())
        ],
        "accelerators": [
            {
                "id": card.id,
                "name": card.name,
                "vendor": card.vendor.value,
                "memory_gib": card.memory_gib,
                "grade": card.memory_grade.value,
                "source": card.source,
            }
            for card in catalogue.load_accelerators()
        ],
        "engines": [
            {"engine": engine, "version": version}
            for engine in engine_names()
            for version in engine_versions(engine)
        ],
    }
