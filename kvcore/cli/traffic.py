"""Commands about the requests of a service: their logs, the engine's histograms, their replay."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kvcore.base.errors import ScenarioError
from kvcore.base.untrusted import utf8_text
from kvcore.cli.streams import opened_file, waiting
from kvcore.planning import plan
from kvcore.wire.request import from_hub, parse_request, scenario_from_request

if TYPE_CHECKING:
    from kvcore.workload.records import RequestLog
    from kvcore.workload.requests import Reading


def columns(text: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (field.strip(), name) for field, _, name in (part.partition("=") for part in text.split(","))
    )


def moment(text: str) -> float:
    from kvcore.workload.layers import seconds_of

    found = seconds_of(text)
    if found is None:
        raise argparse.ArgumentTypeError("a time is ISO 8601, or seconds since 1970")
    return found


def tokens(text: str) -> int:
    from kvcore.workload.histogram import MAX_TOKENS

    if not 1 <= int(text) <= MAX_TOKENS:
        raise argparse.ArgumentTypeError(f"it lies between 1 and {MAX_TOKENS}")
    return int(text)


def factor(text: str) -> float:
    factor = float(text)
    if not 1e-6 <= factor <= 1e6:
        raise argparse.ArgumentTypeError("a factor lies between 10^-6 and 10^6")
    return factor


def run_workload(arguments: argparse.Namespace) -> int:
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


def _request_log(arguments: argparse.Namespace) -> RequestLog:
    from kvcore.workload.database.files import is_remote, named_files, read_files
    from kvcore.workload.logs import read_request_logs
    from kvcore.workload.requests import Reading
    from kvcore.workload.texts import read_tokenizer

    columns = dict(arguments.columns)
    names = (columns.get("prompt"), columns.get("completion"), arguments.timeout)
    if arguments.connect is not None:
        from kvcore.workload.database.connection import log_of_cells, read_table

        waiting("asking the database")
        return log_of_cells(read_table(arguments.connect, arguments.table or "requests", *names))
    if any(map(is_remote, arguments.files)):
        return read_files(arguments.files, *names)
    named = [one for path in arguments.files for one in named_files(path)]
    with ExitStack() as opened:
        files = (opened.enter_context(opened_file(path)) for path in named)
        counter = read_tokenizer(arguments.tokenizer) if arguments.tokenizer else None
        reading = Reading(
            counter=counter, columns=arguments.columns, only=arguments.only, since=arguments.since,
            until=arguments.until, max_bytes=None, max_requests=None,
        )  # fmt: skip
        return read_request_logs(files, reading=reading)


def run_metrics(arguments: argparse.Namespace) -> int:
    from kvcore.workload.prometheus import (
        MAX_TEXT_BYTES,
        metrics_report,
        metrics_table,
        query_server,
        read_metrics,
    )

    if arguments.source.startswith(("http://", "https://")):
        waiting("asking the Prometheus server")
        found = query_server(arguments.source, arguments.window)
    else:
        with opened_file(arguments.source) as content:
            found = read_metrics(content.read(MAX_TEXT_BYTES).decode("utf-8", "replace"))
    report = metrics_report(found, arguments.requests_per_second)
    print(json.dumps(report, ensure_ascii=False) if arguments.json else metrics_table(report))
    return 0


def run_replay(arguments: argparse.Namespace) -> int:
    if arguments.steps:
        return _replay_steps(arguments.file)
    from kvcore.charts.replay_figures import (
        block_gib,
        bound_clock,
        fit_report,
        fit_table,
        replay_report,
        replay_table,
        reuse_report,
        reuse_table,
    )
    from kvcore.replay.bench import read_bench
    from kvcore.replay.clock import Clock, FittedClock, UserClock
    from kvcore.replay.fitting import fitted_clock
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
        clock = fitted_clock(read_bench(utf8_text(arguments.bench.read_bytes())), settings_of(planned))
    elif None not in rates:
        clock = UserClock(prefill_tokens_per_second=rates[0], decode_tokens_per_second=rates[1])
    else:
        clock = bound_clock(planned)
    with opened_file(arguments.file) as source:
        trace = read_trace(source, _asked(arguments))
    settings = settings_of(planned)
    found = replayed(sped_up(trace, arguments.rate), settings, clock)
    reuse = None  # known only for one group of full attention
    if not settings.groups:
        reuse = reuse_report(reuse_of(trace, settings.block_size), settings, block_gib(planned))
    fit = clock if isinstance(clock, FittedClock) else None
    if arguments.json:
        print(json.dumps({**replay_report(found), "fit": fit and fit_report(fit), "reuse": reuse}))
    else:
        fitted = [fit_table(fit)] if fit else []
        print("\n".join((replay_table(found), *fitted, *([reuse_table(reuse)] if reuse else ()))))
    return 0


def _asked(arguments: argparse.Namespace) -> Reading:
    from kvcore.workload.requests import Reading

    return Reading(only=arguments.only, since=arguments.since, until=arguments.until, max_bytes=None)


def _replay_steps(file: str) -> int:
    from kvcore.replay.steps import MAX_LINE_BYTES, case_answer

    with opened_file(file) as source:
        while line := source.readline(MAX_LINE_BYTES + 1):
            if line.strip():
                print(json.dumps(case_answer(line)), flush=True)
    return 0
