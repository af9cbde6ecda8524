"""The memory of each GPU or NPU that serves a large language model: planned as vLLM itself would plan it.

A `Scenario` says what is served, on what, with which flags; `plan` turns it into a `Plan`: where every byte goes, and
what that buys. Fields are named as the engine names its flags.

    >>> import kvcore
    >>> found = kvcore.plan(model="Qwen/Qwen3-32B", accelerator="H100-80GB", tensor_parallel_size=2)
    >>> found.verdict.value, found.resolved.max_model_len
    ('fits', 40960)
    >>> found.cache.tokens > found.resolved.max_model_len
    True

What cannot be planned is an error with a code, the field it is about and a next step:

    >>> try:
    ...     kvcore.plan(model="Qwen/Qwen3-32B", accelerator="H100-80GB", tensor_parallel_size=3)
    ... except kvcore.KvPlannerError as error:
    ...     print(error.code, error.field)
    heads-not-divisible tensor_parallel_size

| name | what |
|---|---|
| `plan(model=..., **flags)`, `plan(scenario)` | one deployment -> `Plan`, with its `Verdict` |
| `load_scenario(source)` | a request, or a file with one -> `Scenario` |
| `replace(plan, **flags)` | the same with other flags -> `Scenario` |
| `sweep(models=..., accelerators=...)` | many models on many cards |
| `fewest_gpus(model=..., wanted=...)` | the fewest GPUs of each card that serve a target |
| `fixes(plan)` | single changes that fix it |
| `compare(plan, plan)`, `compare_releases("0.30.0", "0.33.0", ...)` | what differs, and why |
| `check(paths, accelerator=...)` | files that you deploy: whether each engine in them starts |
| `curve(plan)` | requests at once by length, as rows for a data frame |
| `launch_files(plan)`, `result(plan)` | files that start it; the JSON of `kvcore plan` |
| `catalogue` | the bundled models and accelerators |
| `read_log(text)`, `request_of_log(text)` | a start-up log -> what it printed, what it asked for |
| `Request` | the type of a request: every flag with its values, for editors and type checkers |
| `KvPlannerError` | every error: `ScenarioError`, `ModelError`, `EngineRefusalError`, ... |

`kvcore` is the same from a shell. Longer examples: docs/library.md; each field: docs/contract.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvcore import catalogue
    from kvcore.base.errors import (
        CatalogueError,
        DefectError,
        EngineRefusalError,
        HubError,
        KvPlannerError,
        LogError,
        ManifestError,
        ModelError,
        ScenarioError,
        WorkloadError,
    )
    from kvcore.evidence.log.reader import read_log
    from kvcore.flags.typed import Request
    from kvcore.library import load_scenario, plan, replace, sweep
    from kvcore.library.everyday import (
        check,
        compare,
        compare_releases,
        curve,
        fewest_gpus,
        fixes,
        launch_files,
        request_of_log,
        result,
    )
    from kvcore.planning import Plan, Verdict
    from kvcore.scenario import Scenario

    __version__: str

__all__ = [
    "CatalogueError",
    "DefectError",
    "EngineRefusalError",
    "HubError",
    "KvPlannerError",
    "LogError",
    "ManifestError",
    "ModelError",
    "Plan",
    "Request",
    "Scenario",
    "ScenarioError",
    "Verdict",
    "WorkloadError",
    "catalogue",
    "check",
    "compare",
    "compare_releases",
    "curve",
    "fewest_gpus",
    "fixes",
    "launch_files",
    "load_scenario",
    "plan",
    "read_log",
    "replace",
    "request_of_log",
    "result",
    "sweep",
]

_EVERYDAY: Final = (
    "check", "compare", "compare_releases", "curve", "fewest_gpus", "fixes", "launch_files", "request_of_log", "result",
)  # fmt: skip
_HOMES: Final = {
    "Plan": "planning",
    "Request": "flags.typed",
    "Scenario": "scenario",
    "Verdict": "planning",
    "load_scenario": "library",
    "plan": "library",
    "read_log": "evidence.log.reader",
    "replace": "library",
    "sweep": "library",
    **dict.fromkeys(_EVERYDAY, "library.everyday"),
}
"""The module of each name that is not an error."""

if not TYPE_CHECKING:  # a type checker would take any name for one of this package

    def __getattr__(name: str) -> Any:
        """A public name, imported when it is first asked for: `import kvcore` alone reads nothing else."""
        if name == "__version__":
            return import_module("kvcore.version").VERSION
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "catalogue":
            return import_module("kvcore.catalogue")
        found = getattr(import_module(f"kvcore.{_HOMES.get(name, 'base.errors')}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
