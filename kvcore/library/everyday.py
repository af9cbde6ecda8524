"""Functions for everyday tasks: what a log asked for, files to launch, a curve as rows, differences, fewest GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError, invalid, not_among
from kvcore.contract.result import planned_result
from kvcore.flags import FLAGS
from kvcore.library import bytes_of, changed, checked_names, load_scenario
from kvcore.planning import Plan
from kvcore.scenario import Scenario
from kvcore.wire.fields import read_integer

if TYPE_CHECKING:
    from kvcore.advice.difference import Difference
    from kvcore.advice.fewest import Fitting
    from kvcore.advice.fixes import Fix
    from kvcore.evidence.log.reader import StartupLog
    from kvcore.flags.typed import Request
    from kvcore.preflight.outcome import Checks

MAX_LENGTHS: Final = 4096


def request_of_log(log: StartupLog | str | bytes, *, measured: bool = False) -> dict[str, Any]:
    """The request of a log's start, with the flags that it names: what `plan` and `load_scenario` take.

    With `measured` also the parts that it printed, so that the plan is calibrated by this start.

    Raises KvPlannerError: LogError, and with `measured` for a start that cannot be planned.

    Example:
        >>> request_of_log("non-default args: {'model': 'Qwen/Qwen3-8B', 'max_model_len': 8192}")
        {'model': 'Qwen/Qwen3-8B', 'engine': 'vllm', 'max_model_len': 8192}
    """
    from kvcore.evidence.calibration import calibrated, measured_values
    from kvcore.evidence.log.reader import read_log
    from kvcore.evidence.recognized import find_logged_model, request_from, scenario_from_log
    from kvcore.planning import plan

    read = read_log(log) if isinstance(log, str | bytes) else log
    entry = find_logged_model(read.model)
    request = request_from(read)
    found = request if entry is None else {**request, "model": entry.id}
    if measured:
        planned = plan(scenario_from_log(read).scenario)
        found = {**found, "measured": measured_values(calibrated(read, planned))}
    return {name: value for name, value in found.items() if value is not None}


def launch_files(plan: Plan, *, every_flag: bool = False) -> dict[str, str]:
    """Files that start a deployment, by their names: command, YAML, container, Compose, Kubernetes, systemd.

    A kind that is not possible, such as a container without a known image, is left out. `every_flag` writes what the
    engine resolves too, so that a later release starts the same.

    Example:
        >>> from kvcore.library import plan
        >>> files = launch_files(plan(model="Qwen/Qwen3-8B", accelerator="L4-24GB", max_model_len=8192))
        >>> files["serve.sh"].splitlines()[-1].strip(), "compose.yaml" in files
        ('--max-model-len 8192', True)
    """
    from kvcore.deploy.launch_files import FILE_NAMES, Artefact, artefact

    found = {}
    for kind in Artefact:
        try:
            found[FILE_NAMES[kind]] = artefact(kind, plan, every_flag=every_flag)
        except KvPlannerError:
            continue
    return found


def curve(plan: Plan, lengths: Iterable[int] = ()) -> list[dict[str, float]]:
    """Requests at once by their length, a row each, with the ends of the 80 % interval, for `pandas.DataFrame`.

    Without `lengths` powers of two up to the model's length, and the planned one. Raises ScenarioError `invalid-value`.

    Example:
        >>> from kvcore.library import plan
        >>> rows = curve(plan(model="Qwen/Qwen3-8B", accelerator="L4-24GB", max_model_len=8192), [4096, 8192])
        >>> [sorted(row) for row in rows[:1]], rows[0]["max_concurrency"] > rows[1]["max_concurrency"]
        ([['high', 'low', 'max_concurrency', 'max_model_len']], True)
    """
    from kvcore.advice.vary import concurrency_curve

    limit = plan.resolved.derived_max_model_len
    asked = tuple(lengths) or tuple(
        sorted(
            {
                plan.resolved.max_model_len,
                limit,
                *(1 << power for power in range(9, 25) if 1 << power < limit),
            }
        )
    )
    if len(asked) > MAX_LENGTHS or not all(
        type(length) is int and 1 <= length <= 1 << 40 for length in asked
    ):
        raise invalid(
            "lengths", asked, f"it must be a list of at most {MAX_LENGTHS:,} positive whole numbers"
        )
    found = concurrency_curve(plan, asked)
    return [
        {"max_model_len": length, "max_concurrency": most, "low": low, "high": high}
        for length, most, low, high in zip(
            found.lengths, found.concurrency, found.low, found.high, strict=True
        )
    ]


def fixes(plan: Plan) -> tuple[Fix, ...]:
    """Single changes that fix a plan, the first that an expert tries first; none where it fits and serves its target.

    Example:
        >>> from kvcore.library import plan
        >>> [(fix.field, fix.value) for fix in fixes(plan(model="Qwen/Qwen3-32B", accelerator="H100-80GB"))][:2]
        [('max_model_len', 29824), ('kv_cache_dtype', 'fp8')]
    """
    from kvcore.advice import fixes as advice
    from kvcore.planning import Verdict

    is_good = plan.verdict is Verdict.FITS and not advice.falls_short(plan)
    return () if is_good else advice.fixes(plan)


def result(plan: Plan) -> dict[str, Any]:
    """A plan as the JSON that `kvcore plan` writes (docs/contract.md), its fixes included.

    Example:
        >>> from kvcore.library import plan
        >>> result(plan(model="Qwen/Qwen3-8B", accelerator="H100-80GB"))["verdict"]
        'fits'
    """
    return planned_result(plan)


def check(
    files: Mapping[str, str] | Iterable[str | os.PathLike[str]],
    *,
    accelerator: str | None = None,
    target: int | None = None,
    tight: str = "starts",
) -> Checks:
    """Files that people deploy, by their paths or by name and text: for each engine in them whether it starts.

    Folders are read too. `checked` has the engines with `outcome`, `reasons` and `plans`; `status` is that of
    `kvcore check`. Raises KvPlannerError for a file that cannot be read, or a card that is not known.

    Example:
        >>> found = check({"run.sh": "vllm serve Qwen/Qwen3-8B --max-model-len 8192"}, accelerator="L4-24GB")
        >>> [(one.workload.model, one.outcome.value) for one in found.checked], found.status
        ([('Qwen/Qwen3-8B', 'starts')], 0)
    """
    from kvcore.manifests.files import Source, files_under
    from kvcore.preflight.outcome import Tight, check_files

    if tight not in list(Tight):
        raise not_among("tight", tight, list(Tight))
    if target is not None:
        read_integer(FLAGS["wanted"], target)
    if isinstance(files, Mapping):
        if not all(isinstance(part, str) for pair in files.items() for part in pair):
            raise invalid("files", type(files).__name__, "it must have a text for each name")
        sources = [Source(name, text) for name, text in files.items()]
    else:
        given = [files] if isinstance(files, str | os.PathLike) else files
        paths = list(given) if isinstance(given, Iterable) else [None]
        if not all(isinstance(path, str | os.PathLike) for path in paths):
            raise invalid("files", type(files).__name__, "it must be paths, or texts by their names")
        names = (name for path in paths if path is not None for name in files_under(os.fspath(path)))
        sources = [Source(name, bytes_of(name)) for name in names]
    return check_files(sources, accelerator, Tight(tight), target)


def compare(before: Plan | Scenario, after: Plan | Scenario) -> Difference:
    """Two deployments: `asked` fields, `settings`, `parts` and `figures` that differ, each part with its why.

    Raises KvPlannerError for one that cannot be planned.

    Example:
        >>> from kvcore.library import plan
        >>> one = plan(model="Qwen/Qwen3-8B", accelerator="H100-80GB")
        >>> [(change.name, change.after) for change in compare(one, plan(one, kv_cache_dtype="fp8")).asked]
        [('kv_cache_dtype', 'fp8')]
    """
    from kvcore.advice.difference import difference
    from kvcore.library import plan

    return difference(plan(before), plan(after))


def compare_releases(before: str, after: str, **flags: Unpack[Request]) -> Difference:
    """One deployment on two releases of its engine: what an upgrade changes, and why.

    Raises KvPlannerError for a release that is not known, or that refuses the deployment.

    Example:
        >>> found = compare_releases("0.11.0", "0.33.0", model="Qwen/Qwen3-8B", accelerator="H100-80GB")
        >>> [change.name for change in found.settings][:1]
        ['gpu_memory_utilization']
    """
    from kvcore.advice.difference import release_difference

    return release_difference(load_scenario(flags), before, after)


def fewest_gpus(
    scenario: Scenario | Plan | None = None, /, *, accelerators: Sequence[str] = (), **flags: Unpack[Request]
) -> tuple[Fitting, ...]:
    """The cards that serve `wanted` requests of `max_model_len` tokens at once, the fewest GPUs first.

    Without a length each request is as long as the model allows, without a target one request is served. Raises
    KvPlannerError.

    Example:
        >>> asked = {"model": "Qwen/Qwen3-32B", "wanted": 40, "max_model_len": 16384}
        >>> best = fewest_gpus(accelerators=["H100-80GB", "L40S-48GB"], **asked)[0]
        >>> best.accelerator.id, best.gpus, best.tensor_parallel_size, best.replicas
        ('H100-80GB', 4, 4, 1)
    """
    from kvcore.advice import fewest

    base = load_scenario(flags) if scenario is None else changed(scenario, flags)
    cards = [catalogue.find_accelerator(name) for name in checked_names("accelerators", accelerators)]
    if not cards and base.accelerator is not None:
        cards = [base.accelerator]
    return fewest.fewest_gpus(base, cards)
