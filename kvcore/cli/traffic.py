"""Commands about the requests of a service: their logs, the engine's histograms, their replay."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcore.base.errors import ScenarioError, WorkloadError
from kvcore.base.untrusted import utf8_text
from kvcore.cli.streams import opened_file, waiting
from kvcore.planning import Plan, plan
from kvcore.wire.request import from_hub, parse_request, scenario_from_request

if TYPE_CHECKING:
    from kvcore.replay.clock import Clock
    from kvcore.workload.records import RequestLog
    from kvcore.workload.requests import Prompts, Reading


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
    from kvcore.workload.prefixes import PrefixCounter, prefix_lines, prefix_report

    prefixes = PrefixCounter() if arguments.prefixes else None
    log = _request_log(arguments, prefixes)
    if arguments.save is not None:
        arguments.save.write_text(log.traffic.text(), "utf-8")
    report = workload_report(log, arguments.max_tokens)
    lines = [workload_table(report, log)]
    if prefixes is not None:
        report["prefixes"] = prefix_report(prefixes.report())
        lines += prefix_lines(prefixes.report())
    if arguments.against is not None:
        report["against"], text = _against(arguments, report)
        lines.append(text)
    if arguments.request is not None:
        _for_plan(arguments, log, report, lines)
    elif arguments.goal is not None:
        raise ScenarioError("missing-field", field="--request")
    print(json.dumps(report, ensure_ascii=False) if arguments.json else "\n".join(lines))
    return 0


def _against(arguments: argparse.Namespace, report: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The same statistics of another log, and how much larger they are."""
    from kvcore.workload.compared import compared_table, compared_traffic
    from kvcore.workload.mix import workload_report

    other = argparse.Namespace(**{**vars(arguments), "files": (str(arguments.against),), "connect": None})
    found = compared_traffic(report, workload_report(_request_log(other), arguments.max_tokens))
    return found, compared_table(found)


def _for_plan(
    arguments: argparse.Namespace, log: RequestLog, report: dict[str, Any], lines: list[str]
) -> None:
    """What a plan holds of these requests at once, and what it needs for a goal of latency; of a server for prompts or
    for answers alone, how many the log's rate needs."""
    from kvcore.advice.pools import pool_line, pool_need, pool_report
    from kvcore.replay.settings import check_replayed
    from kvcore.workload.capacity import capacity_report, capacity_table, recalled, shared_prefix_tokens
    from kvcore.workload.mix import Mix

    planned = _planned(arguments.request)
    rate, traffic = log.timeline.per_second, log.traffic
    lengths = traffic.prompts.mean_tokens, traffic.answers.mean_tokens
    need = None if rate is None or arguments.goal is not None else pool_need(planned, rate, *lengths)
    if need is not None:
        report["pool"] = pool_report(need)
        lines.append(pool_line(need))
        return
    check_replayed(planned)
    shared = arguments.shared_tokens
    if shared is None:
        shared = shared_prefix_tokens(log.timeline)
    found = capacity_report(planned, Mix(traffic=log.traffic), shared, recalled(log.timeline))
    report["capacity"] = found
    lines.append(capacity_table(found))
    if arguments.goal is not None:
        _goal(arguments, log, planned, report, lines)


def _goal(
    arguments: argparse.Namespace, log: RequestLog, planned: Plan, report: dict[str, Any], lines: list[str]
) -> None:
    from kvcore.charts.goal_figures import goal_report, goal_table, reaching
    from kvcore.replay.goals import Goal
    from kvcore.replay.routing import Routing
    from kvcore.replay.series import ended, sped_up
    from kvcore.replay.trace import admitted, trace_of

    wanted = dict(arguments.goal)
    goal = Goal(percent=arguments.percent, **wanted)
    timeline = log.timeline
    if not len(timeline):
        raise WorkloadError("trace-without-times", field="trace")
    trace = admitted(trace_of(timeline), planned.resolved.max_model_len)
    routing = None if arguments.routing is None else Routing(arguments.routing)
    starts = timeline.starts if arguments.by_hour else None
    waiting("replaying the requests for the goal")
    found = ended(
        reaching(planned, sped_up(trace, arguments.rate), goal, _clock(arguments, planned), routing, starts)
    )
    report["goal"] = goal_report(found, planned, arguments.price)
    lines.append(goal_table(found, planned, arguments.price))


def goal(text: str) -> tuple[tuple[str, float], ...]:
    """`ttft=2,tpot=0.05`: seconds."""
    found = []
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in ("ttft", "tpot"):
            raise argparse.ArgumentTypeError("a goal is ttft=SECONDS, tpot=SECONDS, or both with a comma")
        found.append((name.strip(), float(value)))
    return tuple(found)


def _planned(path: Path) -> Plan:
    return plan(scenario_from_request(parse_request(utf8_text(path.read_bytes())), from_hub))


def _clock(arguments: argparse.Namespace, planned: Plan) -> Clock:
    """The clock that the arguments ask for: fitted, by rates, else the fastest possible."""
    from kvcore.charts.replay_figures import bound_clock
    from kvcore.replay.bench import read_bench
    from kvcore.replay.clock import UserClock
    from kvcore.replay.fitting import fitted_clock
    from kvcore.replay.settings import settings_of

    rates = arguments.prefill_tokens_per_second, arguments.decode_tokens_per_second
    if arguments.bench is not None:
        return fitted_clock(read_bench(utf8_text(arguments.bench.read_bytes())), settings_of(planned))
    if None not in rates:
        return UserClock(prefill_tokens_per_second=rates[0], decode_tokens_per_second=rates[1])
    return bound_clock(planned)


def _request_log(arguments: argparse.Namespace, prefixes: Prompts | None = None) -> RequestLog:
    from kvcore.workload.database.files import is_remote, named_files, read_files
    from kvcore.workload.logs import read_request_logs
    from kvcore.workload.requests import Reading
    from kvcore.workload.texts import read_tokenizer

    columns = dict(arguments.columns)
    names = (columns.get("prompt"), columns.get("completion"), arguments.timeout)
    picks = (
        arguments.only or arguments.since is not None or arguments.until is not None or prefixes is not None
    )
    if picks and (arguments.connect is not None or any(map(is_remote, arguments.files))):
        raise WorkloadError("database-picks")
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
            until=arguments.until, prefixes=prefixes, max_bytes=None, max_requests=None,
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
        fit_report,
        fit_table,
        replay_report,
        replay_table,
        reuse_report,
        reuse_table,
    )
    from kvcore.charts.tier_rows import tier_rows, tiers_report, tiers_table
    from kvcore.replay.clock import FittedClock
    from kvcore.replay.reuse import reuse_of
    from kvcore.replay.series import replayed, sped_up
    from kvcore.replay.settings import settings_of
    from kvcore.replay.trace import read_whole_trace

    if arguments.request is None:
        raise ScenarioError("missing-field", field="--request")
    planned = _planned(arguments.request)
    clock = _clock(arguments, planned)
    with opened_file(arguments.file) as source:
        trace, left_out = read_whole_trace(source, _asked(arguments))
    settings = settings_of(planned)
    found = replayed(sped_up(trace, arguments.rate), settings, clock)
    reuse, tables = None, []  # known only for one group of full attention
    if not settings.groups:
        hits = reuse_of(trace, settings.block_size)
        tiers = tier_rows(planned, hits, settings.usable_blocks)
        reuse = reuse_report(hits, settings, block_gib(planned)) | {"tiers": tiers_report(tiers)}
        tables = [reuse_table(reuse)] + ([tiers_table(tiers)] if tiers else [])
    fit = clock if isinstance(clock, FittedClock) else None
    if arguments.json:
        more = {"left_out": left_out.named, "fit": fit and fit_report(fit), "reuse": reuse}
        print(json.dumps({**replay_report(found), **more}))
    else:
        fitted = [fit_table(fit)] if fit else []
        if left_out.named:
            said = ", ".join(
                f"{number:,} {name.replace('_', ' ')}" for name, number in left_out.named.items()
            )
            fitted.insert(0, f"{'left out of the log':<24}{said}")
        print("\n".join((replay_table(found), *fitted, *tables)))
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
