"""The Workload page: a part of a log, by model, kind, status and time, as the command line has it."""

from __future__ import annotations

import io
import json

from kvcore.workload.logs import read_request_log
from kvcore.workload.requests import Reading
from tests.page_app import checked, seen
from tests.test_page_workload import open_workload, upload

LINES = [
    {
        "created": 1_790_000_000 + 60 * at,
        "model": "small" if at % 3 else "large-70b",
        "status": 200 if at % 5 else 429,
        "usage": {"prompt_tokens": 100 + at, "completion_tokens": 9},
    }
    for at in range(90)
]
LOG = "\n".join(map(json.dumps, LINES)).encode()


def test_a_part_is_read_and_the_rest_is_counted_apart() -> None:
    app = open_workload()
    app.text_input(key="workload.part.model").set_value("large*")
    app.text_input(key="workload.part.until").set_value("1790002400").run()
    app = upload(checked(app), "gateway.jsonl", LOG)
    wanted = Reading(only=(("model", "large*"),), until=1_790_002_400.0)
    log = read_request_log(io.BytesIO(LOG), reading=wanted)
    assert 0 < log.traffic.requests < 15
    assert log.not_asked > 50
    shown = seen(app)
    assert f"gateway.jsonl (model=large*, until=1790002400): {log.traffic.requests} requests" in shown
    assert f"Requests that were not asked for, in none of the figures: {log.not_asked}." in shown


def test_a_part_without_requests_names_the_fields_and_stays() -> None:
    app = open_workload()
    app.text_input(key="workload.part.status").set_value("201").run()
    app = upload(checked(app), "gateway.jsonl", LOG)
    assert "request-log-none-asked" in seen(app)
    # Another value reads the same files again.
    app.text_input(key="workload.part.status").set_value("").run()
    assert "gateway.jsonl: " in seen(checked(app))


def test_a_time_that_is_none_is_said_where_it_is_typed() -> None:
    app = open_workload()
    app.text_input(key="workload.part.since").set_value("yesterday").run()
    assert "request-log-time" in seen(checked(app))
    assert "request-log-time" in seen(upload(app, "gateway.jsonl", LOG))
