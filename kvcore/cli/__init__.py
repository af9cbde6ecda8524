"""python -m kvcore: the JSON contract on standard input and output, and readable tables for people."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from kvcore.base.errors import KvPlannerError, ScenarioError, defect
from kvcore.base.untrusted import parse_json_object, utf8_text
from kvcore.contract.result import answer
from kvcore.library import ALLOCATIONS_BETWEEN_COLLECTIONS, SIZES, catalogue_rows, sweep_side_by_side
from kvcore.model.config import SharedConfigs
from kvcore.planning import Batch, plan
from kvcore.wire.fields import Json
from kvcore.wire.request import from_hub, id_of, parse_request, scenario_from_request

if TYPE_CHECKING:
    from kvcore.workload.records import RequestLog

UNREADABLE_INPUT = 2
HELP_COLUMNS = 100
SWEPT_FLAGS = ("max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "quantization", "engine_version")
CURVE_LENGTHS = tuple(1 << power for power in range(9, 21))


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 when every request got a result, 2 when the input could not be read at all."""
    given = sys.argv[1:] if argv is None else argv
    arguments = _parser(given[0] if given else "").parse_args(given)
    try:
        status: int = arguments.run(arguments)
    except OSError as error:
        print(f"kvcore: {error}", file=sys.stderr)
        return UNREADABLE_INPUT
    except Exception as error:
        found = error if isinstance(error, KvPlannerError) else defect(error)
        print(f"kvcore: {found}; {found.next_step}", file=sys.stderr)
        return UNREADABLE_INPUT
    return status


def _parser(asked: str) -> argparse.ArgumentParser:
    """The parser of the command `asked` alone, since each costs argparse time; of all for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m kvcore", description=__doc__, formatter_class=_help)
    commands = parser.add_subparsers(required=True, metavar="command", prog=parser.prog)
    for name, (run, text, arguments) in _COMMANDS.items():
        if asked in _COMMANDS and name != asked:
            continue
        command = commands.add_parser(name, help=text, formatter_class=_help)
        command.set_defaults(run=run)
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


def _columns(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (field.strip(), name) for field, _, name in (part.partition("=") for part in text.split(","))
    )


def _tokens(text: str) -> int:
    from kvcore.workload.histogram import MAX_TOKENS

    if not 1 <= int(text) <= MAX_TOKENS:
        raise argparse.ArgumentTypeError(f"it lies between 1 and {MAX_TOKENS}")
    return int(text)


def _factor(text: str) -> float:
    factor = float(text)
    if not 1e-6 <= factor <= 1e6:
        raise argparse.ArgumentTypeError("a factor lies between 10^-6 and 10^6")
    return factor


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _open(path: str) -> AbstractContextManager[BinaryIO]:
    return nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb")


def _plan(arguments: argparse.Namespace) -> int:
    configs, batch, as_json = SharedConfigs(), Batch(), json.JSONEncoder(ensure_ascii=False).encode
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
    with _open(arguments.file) as source:
        requests: Iterator[bytes] = (
            (line for line in source if line.strip()) if arguments.jsonl else iter([source.read()])
        )
        for text in requests:
            sys.stdout.write(as_json(answer(text, configs.read, batch)) + "\n")
    return 0


def _curve(arguments: argparse.Namespace) -> int:
    from kvcore.advice.vary import tensor_parallel_curves

    with _open(arguments.file) as source:
        request: Json = parse_request(utf8_text(source.read()))
    request_id = id_of(request)
    base = plan(scenario_from_request(request, from_hub))
    curves = tensor_parallel_curves(base, arguments.lengths)
    if arguments.json:
        rows = [
            {
                "tensor_parallel_size": curve.tensor_parallel_size,
                "points": [
                    {"max_model_len": length, "max_concurrency": most, "interval": bounds}
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
        print(f"{length:>12,}" + "".join(f"{curve.concurrency[index]:>12,.2f}" for curve in curves))
    return 0


def _log(arguments: argparse.Namespace) -> int:
    from kvcore.evidence.log.reader import read_log
    from kvcore.evidence.log_report import log_report, log_table

    with _open(arguments.file) as source:
        data = source.read()
    config = None if arguments.config is None else parse_request(utf8_text(arguments.config.read_bytes()))
    report = log_report(read_log(data), config)
    print(json.dumps(report, ensure_ascii=False) if arguments.json else log_table(report))
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from kvcore.contract.deployed import Tight, check_files, check_lines, check_result
    from kvcore.manifests.files import Source, files_under

    sources = [Source(name, sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
               for path in arguments.files for name in files_under(path)]  # fmt: skip
    found = check_files(sources, arguments.accelerator, Tight(arguments.tight))
    if arguments.json:
        print(json.dumps(check_result(found), ensure_ascii=False))
    else:
        print("\n".join(check_lines(found)))
    return found.status


def _workload(arguments: argparse.Namespace) -> int:
    columns = dict(arguments.columns)
    if arguments.sql is not None:
        from kvcore.workload.database.query import take_away

        names = {
            "table": arguments.table,
            "prompt": columns.get("prompt"),
            "answer": columns.get("completion"),
            "status": columns.get("status"),
        }
        print(take_away(arguments.sql, **{key: name for key, name in names.items() if name is not None}))
        return 0
    from kvcore.workload.mix import workload_report, workload_table

    log = _request_log(arguments)
    if arguments.save is not None:
        arguments.save.write_text(log.traffic.text(), "utf-8")
    report = workload_report(log, arguments.max_tokens)
    print(json.dumps(report, ensure_ascii=False) if arguments.json else workload_table(report, log))
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    if arguments.steps:
        return _replay_steps(arguments.file)
    from kvcore.charts.replay_figures import (
        block_gib,
        bound_clock,
        replay_report,
        replay_table,
        reuse_report,
        reuse_table,
    )
    from kvcore.replay.clock import MAX_BENCH_BYTES, MAX_BENCH_VALUES, Clock, UserClock, fitted_clock
    from kvcore.replay.reuse import reuse_of
    from kvcore.replay.series import replayed, sped_up
    from kvcore.replay.settings import settings_of
    from kvcore.replay.trace import read_trace

    if arguments.request is None:
        raise ScenarioError("missing-field", field="--request")
    planned = plan(scenario_from_request(parse_request(utf8_text(arguments.request.read_bytes())), from_hub))
    rates = arguments.prefill_tokens_per_second, arguments.decode_tokens_per_second
    clock: Clock
    if arguments.bench is not None:
        text = utf8_text(arguments.bench.read_bytes())
        result = parse_json_object(text, max_bytes=MAX_BENCH_BYTES, max_values=MAX_BENCH_VALUES)
        clock = fitted_clock(result)
    elif None not in rates:
        clock = UserClock(prefill_tokens_per_second=rates[0], decode_tokens_per_second=rates[1])
    else:
        clock = bound_clock(planned)
    with _open(arguments.file) as source:
        trace = read_trace(source)
    settings = settings_of(planned)
    found = replayed(sped_up(trace, arguments.rate), settings, clock)
    reuse = None  # known only for one group of full attention
    if not settings.groups:
        reuse = reuse_report(reuse_of(trace, settings.block_size), settings, block_gib(planned))
    if arguments.json:
        print(json.dumps({**replay_report(found), "reuse": reuse}))
    else:
        print("\n".join((replay_table(found), *([reuse_table(reuse)] if reuse else ()))))
    return 0


def _replay_steps(file: str) -> int:
    from kvcore.replay.steps import MAX_LINE_BYTES, case_answer

    with _open(file) as source:
        while line := source.readline(MAX_LINE_BYTES + 1):
            if line.strip():
                print(json.dumps(case_answer(line)), flush=True)
    return 0


def _metrics(arguments: argparse.Namespace) -> int:
    from kvcore.workload.prometheus import (
        MAX_TEXT_BYTES,
        metrics_report,
        metrics_table,
        query_server,
        read_metrics,
    )

    if arguments.source.startswith(("http://", "https://")):
        found = query_server(arguments.source, arguments.window)
    else:
        with _open(arguments.source) as content:
            found = read_metrics(content.read(MAX_TEXT_BYTES).decode("utf-8", "replace"))
    report = metrics_report(found, arguments.requests_per_second)
    print(json.dumps(report, ensure_ascii=False) if arguments.json else metrics_table(report))
    return 0


def _request_log(arguments: argparse.Namespace) -> RequestLog:
    from kvcore.workload.database.files import is_remote, named_files, read_files
    from kvcore.workload.logs import read_request_logs
    from kvcore.workload.requests import Reading
    from kvcore.workload.texts import read_tokenizer

    columns = dict(arguments.columns)
    names = (columns.get("prompt"), columns.get("completion"), arguments.timeout)
    if arguments.connect is not None:
        from kvcore.workload.database.connection import log_of_cells, read_table

        return log_of_cells(read_table(arguments.connect, arguments.table or "requests", *names))
    if any(map(is_remote, arguments.files)):
        return read_files(arguments.files, *names)
    named = [one for path in arguments.files for one in named_files(path)]
    with ExitStack() as opened:
        files = (opened.enter_context(_open(path)) for path in named)
        counter = read_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
        reading = Reading(counter=counter, columns=arguments.columns, max_bytes=None, max_requests=None)
        return read_request_logs(files, reading=reading)


def _sweep(arguments: argparse.Namespace) -> int:
    from kvcore.charts.matrix import json_lines, table_lines

    given = {name: value for name in SWEPT_FLAGS if (value := getattr(arguments, name)) is not None}
    sizes = tuple(dict.fromkeys(arguments.tensor_parallel_sizes))
    named = {"models": arguments.models, "accelerators": arguments.accelerators}
    for swept in sweep_side_by_side(arguments.processes, **named, tensor_parallel_sizes=sizes, **given):
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
_IDS = {"type": _names, "default": (), "help": "catalogue ids, separated by commas"}
_COMMANDS: Mapping[str, tuple[Callable[[argparse.Namespace], int], str, Mapping[str, Mapping[str, Any]]]] = {
    "plan": (_plan, "requests in, memory plans out, as JSON", {
        **_REQUEST,
        "--jsonl": {"action": "store_true", "help": "one request a line, one result a line"},
    }),
    "curve": (_curve, "concurrency at each of a list of context lengths", {
        **_REQUEST,
        "--lengths": {"type": _lengths, "default": CURVE_LENGTHS, "help": "context lengths, 2048,8192,..."},
        **_JSON,
    }),
    "log": (_log, "a start-up log -> measured values, resolved flags, and how the plan differs", {
        "file": {"nargs": "?", "default": "-", "help": "the log; - is standard input"},
        "--config": {"type": Path, "help": "config.json of a model that is not bundled"},
        **_JSON,
    }),
    "check": (_check, "files that you deploy -> whether each engine in them starts (exit 0, 1, 2, 3)", {
        "files": {"nargs": "*", "default": ("-",), "metavar": "FILE", "help":
                  "manifests, Compose files, values, scripts that belong together; folders; - is standard input"},
        "--accelerator": {"metavar": "CARD", "help": "the card, in place of what the files say of it"},
        "--tight": {"choices": ("starts", "does-not-start", "cannot-be-known"), "default": "starts",
                    "help": "what a plan counts as that may fail within its error"},
        **_JSON,
    }),
    "workload": (_workload, "request logs -> length statistics and the max_model_len that they need", {
        "files": {"nargs": "*", "default": ("-",), "metavar": "FILE", "help":
                  "JSON lines, CSV, Parquet, traces; gzip, zstd; with the extra `workload` names with *, s3://"},
        "--columns": {"type": _columns, "default": (), "help": "names in this log: prompt=in,completion=usage.out"},
        "--tokenizer": {"metavar": "PATH|MODEL", "help": "count texts by this tokenizer.json, or a model's"},
        "--connect": {"metavar": "URL", "help": "a database instead: postgres://..., clickhouse://..., or env:NAME"},
        "--table": {"metavar": "NAME", "help": "its table; with its schema, if that is not the usual one"},
        "--timeout": {"type": int, "default": 600, "metavar": "SECONDS", "help": "what a query may take"},
        "--sql": {"metavar": "DIALECT", "help": "print the query to run elsewhere; its answer as CSV is a FILE"},
        "--max-tokens": {
            "type": _tokens,
            "help": "what all clients are to ask for; else what each request states, or its answer",
        },
        "--save": {"type": Path, "metavar": "TRAFFIC.JSON", "help": "write the histograms, to drop on the page"},
        **_JSON,
    }),
    "replay": (_replay, "a trace of requests through the engine's own scheduler, step by step", {
        "file": {"help": "the trace; - is standard input"},
        "--steps": {"action": "store_true", "help": "one case a line in, all its steps a line out"},
        "--request": {"type": Path, "metavar": "PLAN.json", "help": "what serves the trace"},
        "--rate": {"type": _factor, "default": 1.0, "help": "requests come so many times as fast"},
        "--bench": {"type": Path, "help": "a detailed result of vllm bench serve, for the time of a step"},
        "--prefill-tokens-per-second": {"type": float, "help": "in place of --bench: of the engine"},
        "--decode-tokens-per-second": {"type": float, "help": "in place of --bench: of one request"},
        **_JSON,
    }),
    "metrics": (_metrics, "the engine's own histograms -> intervals of lengths, without any log", {
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
}  # fmt: skip
"""The function of each command, its help, and its arguments."""
