"""The command `kvcore`: the JSON contract on standard input and output, and readable tables for people."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

from kvcore.base.errors import KvPlannerError, ScenarioError, defect
from kvcore.base.untrusted import utf8_text
from kvcore.catalogue.accelerators import find_accelerator
from kvcore.cli import check
from kvcore.cli.streams import opened_file, without_reader
from kvcore.contract.result import answer
from kvcore.library import ALLOCATIONS_BETWEEN_COLLECTIONS, SIZES, catalogue_rows, sweep_side_by_side
from kvcore.model.config import SharedConfigs
from kvcore.planning import Batch, plan
from kvcore.version import VERSION
from kvcore.wire.fields import Json
from kvcore.wire.request import from_hub, id_of, parse_request, scenario_from_request

UNREADABLE_INPUT = 2
HELP_COLUMNS = 100
PROGRAM = "kvcore"
ABOUT = (
    "Plans the memory of each GPU or NPU that serves a large language model, as the engine itself would. "
    "Begin with: kvcore plan Qwen/Qwen3-32B --accelerator H100-80GB -tp 2, or, with a file: "
    "kvcore check deployment.yaml --accelerator H100-80GB"
)
SWEPT_FLAGS = ("max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "quantization", "engine_version")
CURVE_LENGTHS = tuple(1 << power for power in range(9, 21))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 when every request got a result, 2 when the input could not be read at all."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _arguments(given)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        return without_reader()
    except OSError as error:
        print(f"kvcore: {error}", file=sys.stderr)
        return UNREADABLE_INPUT
    except Exception as error:
        found = error if isinstance(error, KvPlannerError) else defect(error)
        print(f"kvcore: {found}; {found.next_step}", file=sys.stderr)
        return UNREADABLE_INPUT
    return status


def _arguments(given: list[str]) -> argparse.Namespace:
    """The arguments of a command line. Raises ScenarioError `unknown-option`."""
    asked = given[0] if given else ""
    is_for_people = asked in TYPED and not (asked == "plan" and _is_request(given[1:]))
    parsers: dict[str, argparse.ArgumentParser] = {}
    parser = parser_of(asked, parsers, with_flags=is_for_people)
    if is_for_people:
        from kvcore.cli.words import with_engine_words

        given = [asked, *with_engine_words(parsers[asked], given[1:])]
    return parser.parse_args(given)


def _is_request(words: Sequence[str]) -> bool:
    """Whether `plan` gets a request as JSON, and nothing that a person types beside it."""
    others = [word for word in words if word != "--jsonl"]
    if not others:
        return True
    path = others[0]
    is_file = path == "-" or path.endswith((".json", ".jsonl")) or Path(path).is_file()
    return len(others) == 1 and is_file


def parser_of(
    asked: str, parsers: dict[str, argparse.ArgumentParser], *, with_flags: bool
) -> argparse.ArgumentParser:
    """The parser of the command `asked` alone, since each costs argparse time; of all for an unknown name."""
    parser = argparse.ArgumentParser(prog=PROGRAM, description=ABOUT, formatter_class=_help)
    parser.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="command", prog=parser.prog)
    for name, (run, text, arguments) in COMMANDS.items():
        if asked in COMMANDS and name != asked:
            continue
        command = parsers[name] = commands.add_parser(name, help=text, formatter_class=_help)
        command.set_defaults(run=run)
        command.epilog = check.ENDING if name == "check" else None
        if with_flags and name in TYPED:
            from kvcore.cli.words import add_flags

            run, arguments = TYPED[name]
            command.set_defaults(run=run)
            places = (option.get("metavar", "") for word, option in arguments.items() if word[0] != "-")
            command.usage = f"{PROGRAM} {name} {' '.join(places)} [flags of the engine] [options]"
            add_flags(command)
        for argument, options in arguments.items():
            command.add_argument(argument, **options)
    return parser


def _help(prog: str) -> argparse.HelpFormatter:
    """Help of a fixed width, so that argparse does not import shutil to find the terminal's."""
    return argparse.HelpFormatter(prog, width=HELP_COLUMNS)


def _lengths(text: str) -> tuple[int, ...]:
    lengths = tuple(int(part) for part in text.split(",") if part.strip())
    if not lengths or min(lengths) < 1:
        raise argparse.ArgumentTypeError("lengths are positive whole numbers separated by commas")
    return lengths


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _later(module: str, name: str) -> Callable[[Any], Any]:
    """A function of a module of this folder, imported when it is called."""

    def called(given: Any) -> Any:
        return getattr(import_module(f"kvcore.cli.{module}"), name)(given)

    called.__name__ = name  # argparse names the type of a bad value
    return called


def _completion(arguments: argparse.Namespace) -> int:
    from kvcore.cli.completion import script

    parsers: dict[str, argparse.ArgumentParser] = {}
    parser_of("", parsers, with_flags=True)
    print(script(arguments.shell, parsers), end="")
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    configs, batch, as_json = SharedConfigs(), Batch(), json.JSONEncoder(ensure_ascii=False).encode
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
    with opened_file(arguments.file) as source:
        requests: Iterator[bytes] = (
            (line for line in source if line.strip()) if arguments.jsonl else iter([source.read()])
        )
        for text in requests:
            sys.stdout.write(as_json(answer(text, configs.read, batch)) + "\n")
    return 0


def _curve(arguments: argparse.Namespace) -> int:
    from kvcore.advice.sweep import model_longest
    from kvcore.advice.vary import tensor_parallel_curves

    with opened_file(arguments.file) as source:
        request: Json = parse_request(utf8_text(source.read()))
    request_id = id_of(request)
    base = plan(scenario_from_request(request, from_hub))
    curves = tensor_parallel_curves(base, arguments.lengths)
    longest = model_longest(base.scenario) or max(arguments.lengths)
    if arguments.json:
        rows = [
            {
                "tensor_parallel_size": curve.tensor_parallel_size,
                "points": [
                    {
                        "max_model_len": length,
                        "max_concurrency": most,
                        "interval": bounds,
                        **({"warning": "max-model-len-above-model"} if length > longest else {}),
                    }
                    for length, most, *bounds in zip(
                        curve.lengths, curve.concurrency, curve.low, curve.high, strict=True
                    )
                ],
            }
            for curve in curves
        ]
        print(json.dumps({"id": request_id, "status": "ok", "curves": rows}))
        return 0
    print("tokens".rjust(12) + "".join(f"TP {curve.tensor_parallel_size}".rjust(12) for curve in curves))
    for index, length in enumerate(arguments.lengths):
        mark = "*" if length > longest else ""
        print(
            f"{length:,}{mark}".rjust(12) + "".join(f"{curve.concurrency[index]:>12,.2f}" for curve in curves)
        )
    if max(arguments.lengths) > longest:
        print(f"* above the {longest:,} tokens of the model itself")
    return 0


def _log(arguments: argparse.Namespace) -> int:
    from kvcore.evidence.log.reader import read_log
    from kvcore.evidence.log_report import log_report, log_table

    with opened_file(arguments.file) as source:
        data = source.read()
    config = None if arguments.config is None else parse_request(utf8_text(arguments.config.read_bytes()))
    card = None if arguments.accelerator is None else find_accelerator(arguments.accelerator)
    report = log_report(read_log(data), config, card)
    print(json.dumps(report, ensure_ascii=False) if arguments.json else log_table(report))
    return 0


def _sweep(arguments: argparse.Namespace) -> int:
    from kvcore.charts.matrix import json_lines, table_lines

    given = {name: value for name in SWEPT_FLAGS if (value := getattr(arguments, name)) is not None}
    sizes = tuple(dict.fromkeys(arguments.tensor_parallel_sizes))
    named = {"models": arguments.models, "accelerators": arguments.accelerators}
    rows = sweep_side_by_side(arguments.processes, **named, tensor_parallel_sizes=sizes, **given)
    with closing(rows):  # what is left of it ends with Ctrl-C, and with a reader that goes away
        for swept in rows:
            lines = json_lines(swept) if arguments.json else table_lines(swept, sizes)
            sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _api(arguments: argparse.Namespace) -> int:
    _with_extra("uvicorn", "api")
    _with_extra("kvcore.api.routes", "api").serve(arguments.host, arguments.port)
    return 0


def _mcp(arguments: argparse.Namespace) -> int:
    del arguments
    _with_extra("kvcore.api.agents", "mcp").serve_stdio()
    return 0


def _with_extra(module: str, extra: str) -> Any:
    """A module that needs the packages of an extra. Raises ScenarioError `extra-missing`."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise ScenarioError("extra-missing", extra=extra) from None


def _schema(arguments: argparse.Namespace) -> int:
    del arguments
    from kvcore.flags.schema import request_schema

    print(json.dumps(request_schema(), indent=1, ensure_ascii=False))
    return 0


def _catalogue(arguments: argparse.Namespace) -> int:
    lists = catalogue_rows()
    wanted = {kind: rows for kind, rows in lists.items() if arguments.kind in (None, kind)}
    if arguments.json:
        print(json.dumps(wanted, ensure_ascii=False))
        return 0
    for kind, rows in wanted.items():
        print(f"{kind} ({len(rows)})")
        for row in rows:
            print("  " + "  ".join(f"{value}" for value in row.values() if value not in (None, "")))
    return 0


_REQUEST = {"file": {"nargs": "?", "default": "-", "help": "a request as JSON; - is standard input"}}
_JSON = {"--json": {"action": "store_true", "help": "JSON instead of a table"}}
_PICKED = {
    "--only": {"type": _later("traffic", "columns"), "default": (), "help":
               "requests with these values alone: model=NAME,status=200, any field; NAME* for a beginning"},
    "--since": {"type": _later("traffic", "moment"), "metavar": "TIME", "help": "ISO 8601, or seconds since 1970"},
    "--until": {"type": _later("traffic", "moment"), "metavar": "TIME", "help": "before it"},
}  # fmt: skip
_CLOCK = {
    "--rate": {"type": _later("traffic", "factor"), "default": 1.0, "help": "requests come so many times as fast"},
    "--bench": {"type": Path, "help":
                "a detailed result of vllm bench serve, AIPerf or GuideLLM, for the time of a step"},
    "--prefill-tokens-per-second": {"type": float, "help": "in place of --bench: of the engine"},
    "--decode-tokens-per-second": {"type": float, "help": "in place of --bench: of one request"},
}  # fmt: skip
_IDS = {"type": _names, "default": (), "help": "catalogue ids, separated by commas"}
COMMANDS: Mapping[str, tuple[Callable[[argparse.Namespace], int], str, Mapping[str, Mapping[str, Any]]]] = {
    "plan": (_plan, "a model with flags, or requests as JSON -> memory plans", {
        **_REQUEST,
        "--jsonl": {"action": "store_true", "help": "one request a line, one result a line"},
    }),
    "fit": (_later("people", "run_fit"), "the fewest GPUs of each card that serve so many requests", {}),
    "diff": (_later("people", "run_diff"), "two requests, or two releases: what differs, and why", {}),
    "curve": (_curve, "concurrency at each of a list of context lengths", {
        **_REQUEST,
        "--lengths": {"type": _lengths, "default": CURVE_LENGTHS, "help": "context lengths, 2048,8192,..."},
        **_JSON,
    }),
    "log": (_log, "a start-up log -> measured values, resolved flags, and how the plan differs", {
        "file": {"nargs": "?", "default": "-", "help": "the log; - is standard input"},
        "--config": {"type": Path, "help": "config.json of a model that is not bundled"},
        "--accelerator": {"metavar": "CARD", "help": "the card, in place of what the log says of it"},
        **_JSON,
    }),
    "check": (check.run, "files that you deploy -> whether each engine in them starts (exit 0, 1, 2, 3)",
              check.ARGUMENTS),
    "workload": (_later("traffic", "run_workload"), "request logs -> lengths, and the max_model_len that they need", {
        "files": {"nargs": "*", "default": ("-",), "metavar": "FILE", "help":
                  "JSON lines, CSV, Parquet, traces; gzip, zstd; with the extra `workload` names with *, s3://"},
        "--columns": {"type": _later("traffic", "columns"), "default": (), "help":
                      "names in this log: prompt=in,completion=usage.out"},
        **_PICKED,
        "--prefixes": {"action": "store_true", "help": "which part of which prompt breaks the prefix cache"},
        "--tokenizer": {"metavar": "PATH|MODEL", "help": "count texts by this tokenizer.json, or a model's"},
        "--connect": {"metavar": "URL", "help": "a database instead: postgres://..., clickhouse://..., or env:NAME"},
        "--table": {"metavar": "NAME", "help": "its table; with its schema, if that is not the usual one"},
        "--timeout": {"type": int, "default": 600, "metavar": "SECONDS", "help": "what a query may take"},
        "--sql": {"metavar": "DIALECT", "help": "print the query to run elsewhere; its answer as CSV is a FILE"},
        "--max-tokens": {
            "type": _later("traffic", "tokens"),
            "help": "what all clients are to ask for; else what each request states, or its answer",
        },
        "--save": {"type": Path, "metavar": "TRAFFIC.JSON", "help": "write the histograms, to drop on the page"},
        "--against": {"type": Path, "metavar": "LOG", "help": "another log: how its lengths and rates differ"},
        "--request": {"type": Path, "metavar": "PLAN.json", "help": "what serves them: how many run at once"},
        "--shared-tokens": {"type": _later("traffic", "tokens"), "help": "first tokens that all prompts share"},
        "--goal": {"type": _later("traffic", "goal"), "metavar": "ttft=2,tpot=0.05", "help":
                   "seconds that 95 % of the requests must keep: the replicas for it, with a clock (--bench or rates)"},
        "--percent": {"type": float, "default": 95.0, "help": "of the requests, for --goal"},
        "--routing": {"choices": ("round-robin", "least-loaded", "prefix-aware"), "help":
                      "how requests go to replicas; else in turn, and by load within one deployment"},
        "--price": {"type": float, "help": "of a GPU for an hour, for the cost of a day"},
        "--by-hour": {"action": "store_true", "help": "also the replicas of every hour of the day (UTC)"},
        **_CLOCK,
        **_JSON,
    }),
    "replay": (_later("traffic", "run_replay"), "a trace through the engine's own scheduler, step by step", {
        "file": {"help": "the trace; - is standard input"},
        "--steps": {"action": "store_true", "help": "one case a line in, all its steps a line out"},
        "--request": {"type": Path, "metavar": "PLAN.json", "help": "what serves the trace"},
        **_PICKED,
        **_CLOCK,
        **_JSON,
    }),
    "metrics": (_later("traffic", "run_metrics"), "the engine's own histograms -> intervals of lengths", {
        "source": {"metavar": "FILE|-|URL", "help": "a text of /metrics, or a Prometheus server"},
        "--window": {"default": "7d", "help": "of a Prometheus server"},
        "--requests-per-second": {"type": float, "help": "then also how many are there at once, by Little's law"},
        **_JSON,
    }),
    "sweep": (_sweep, "every model on every accelerator, or those that are named", {
        "--models": _IDS,
        "--accelerators": _IDS,
        "--tensor-parallel-sizes": {"type": _lengths, "default": SIZES, "help": "1,2,4,8"},
        "--max-model-len": {"type": int, "help": "8192, or what the model allows where that is less"},
        "--gpu-memory-utilization": {"type": float},
        "--kv-cache-dtype": {},
        "--quantization": {},
        "--engine-version": {},
        "--processes": {"type": int, "default": 0, "help": "that share out a large sweep; 0: one on each CPU"},
        "--json": {"action": "store_true", "help": "one JSON object a line instead of tables"},
    }),
    "catalogue": (_catalogue, "the bundled models and accelerators, and the known engine versions", {
        "kind": {"choices": ("models", "accelerators", "engines"), "nargs": "?", "help": "only these"},
        **_JSON,
    }),
    "schema": (_schema, "the JSON Schema of a request", {}),
    "api": (_api, "answer over HTTP: /api/plan and its siblings, and /mcp (with the extra `api`)", {
        "--host": {"default": "127.0.0.1", "help": "the address to listen at"},
        "--port": {"type": int, "default": 8502},
    }),
    "mcp": (_mcp, "a server of the Model Context Protocol on standard input and output (with the extra `mcp`)", {}),
    "completion": (_completion, "a script that completes commands, flags, models and cards in a shell", {
        "shell": {"choices": ("bash", "zsh", "fish")},
    }),
}  # fmt: skip
"""The function of each command, its help, and its arguments."""
_MODEL = {"help": "a model, a folder with its config.json, a request as JSON; - is standard input"}
_FORMAT = {"--format": {"choices": ("table", "json", "yaml"), "help": "table, if nothing is said"}}
TYPED: Mapping[str, tuple[Callable[[argparse.Namespace], int], Mapping[str, Mapping[str, Any]]]] = {
    "plan": (_later("people", "run_plan"), {
        "model": {"metavar": "MODEL", **_MODEL},
        **_FORMAT,
        "--exit-status": {"choices": ("starts", "fits", "target"), "default": "", "help":
                          "1 unless it starts, fits with room for error, or serves its --target too"},
        "--jsonl": {"action": "store_true", "help": "with a file alone: one request a line, one result a line"},
    }),
    "fit": (_later("people", "run_fit"), {
        "model": {"metavar": "MODEL", **_MODEL},
        "--accelerators": {**_IDS, "metavar": "CARD,CARD", "help": "only these cards"},
        "--all": {"action": "store_true", "help": "every card, not the first twenty"},
        **_FORMAT,
    }),
    "diff": (_later("people", "run_diff"), {
        "before": {"metavar": "A", "help": "a request as JSON, or a release such as 0.30.0"},
        "after": {"metavar": "B", "help": "another one"},
        "model": {"metavar": "MODEL", "nargs": "?", "help": "of two releases: the model, with its flags behind it"},
        **_FORMAT,
    }),
}  # fmt: skip
"""Commands that take a model and flags: their functions, and their arguments beside the flags of the registry."""
