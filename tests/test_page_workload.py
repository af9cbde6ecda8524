"""The Workload page in its states, in both languages, without a browser."""

from __future__ import annotations

import io
import json
import re
from typing import Any
from urllib.parse import parse_qsl

import pyarrow
import pytest
from pyarrow import parquet
from streamlit.testing.v1 import AppTest

from kvcore.replay.clock import ClockKind
from kvcore.workload.logs import read_request_log
from kvcore.workload.requests import MAX_LOG_BYTES
from kvcore.workload.traffic import unpacked
from tests.page_app import checked, curves, figures, metrics, open_app, params, seen

SAMPLE, TABLE = "workload.sample.requests.jsonl", "workload.sample.requests.csv"
POST_MORTEM = "1000:1180:1196,90:90:90,1090:1270:1286,1512:1692:1708"
WORKED = {
    "model": "Qwen/Qwen3-32B", "accelerator.memory_gib": "24", "accelerator": "RTX-4090-24GB",
    "tensor_parallel_size": "8", "gpu_memory_utilization": "0.75", "max_model_len": "8192", "dtype": "float16",
    "measured.weights_gib": "8", "measured.non_torch_gib": "5", "measured.peak_activation_gib": "0",
    "measured.cuda_graph_gib": "0",
}  # fmt: skip
"""163,840 tokens: 20 requests of 8,192."""


def open_workload(locale: str = "en-US", **query: str) -> AppTest:
    app = open_app(query, locale)
    return checked(app.switch_page("pages/workload.py").run())


def press(app: AppTest, key: str) -> AppTest:
    return checked(app.button(key=key).click().run())


def upload(app: AppTest, name: str, content: bytes) -> AppTest:
    app.file_uploader(key="workload.upload.0").set_value([(name, content, "text/plain")])
    return checked(app.run())


def html(app: AppTest) -> str:
    return "".join(element.proto.body for element in app.get("html"))


def keys(app: AppTest) -> set[str]:
    return {button.key for button in app.button if button.key}


@pytest.mark.parametrize(
    ("locale", "words"), [("en-US", "nothing is stored or sent on"), ("zh-CN", "不保存，也不外传")]
)
def test_empty_page_asks_and_says_what_happens_to_a_log(locale: str, words: str) -> None:
    app = open_workload(locale)
    assert words in seen(app)
    assert not figures(app)
    assert {SAMPLE, TABLE, "workload.typed"} <= keys(app)


@pytest.mark.parametrize(
    ("locale", "sentence"),
    [
        ("en-US", "99 % of the requests need 1,690 tokens: at max_model_len 1,792 this deployment fits 91 of that "
                  "length at once; your 8,192 fits 20"),
        ("zh-CN", "99% 的请求不超过 1,690 token：max_model_len 设为 1,792 时，本部署可同时容纳 91 个该长度的请求；"
                  "你现在的 8,192 只能容纳 20 个"),
    ],
)  # fmt: skip
def test_the_sentence_of_the_sample(locale: str, sentence: str) -> None:
    """163,840 tokens are 10,240 blocks of 16; 1,792 tokens take 112: 91.43."""
    app = press(open_workload(locale, **WORKED), SAMPLE)
    assert app.success[0].value.startswith(sentence)
    assert ("With your real lengths" if locale == "en-US" else "按真实长度") in app.success[0].value
    assert len(figures(app)) == 1
    assert "599" in seen(app)
    assert "412" in seen(app)


def test_use_changes_the_scenario_and_undo_takes_it_back() -> None:
    app = press(open_workload(**WORKED), SAMPLE)
    press(app, "workload.use.1792.answer")
    assert params(app)["max_model_len"] == "1792"
    assert "is right" in app.success[0].value
    assert "workload.use.1792.answer" not in keys(app)
    press(app, "undo_button")
    assert params(app)["max_model_len"] == "8192"


def test_use_of_max_num_seqs() -> None:
    app = press(open_workload(**WORKED), SAMPLE)
    seats = app.button(key="workload.seats").label.split()[-1].replace(",", "")
    press(app, "workload.seats")
    assert params(app)["max_num_seqs"] == seats
    assert "workload.seats" not in keys(app)
    assert (
        metrics(app)["Preemptions a request"] in ("0", "< 0.01")
        or float(metrics(app)["Preemptions a request"]) <= 0.05
    )


def test_the_link_alone_gives_the_same_sentence() -> None:
    app = press(open_workload(**WORKED), SAMPLE)
    link = params(app)
    fresh = open_workload(**link)
    assert fresh.success[0].value == app.success[0].value
    assert "Lengths from a link: 599 requests" in seen(fresh)
    assert params(fresh)["traffic"] == link["traffic"]
    assert metrics(fresh) == metrics(app)
    assert html(fresh) == html(app)
    assert not [value for value in link.values() if "qwen3-32b" in value]


def test_the_lengths_stay_on_other_pages_and_mark_the_curve() -> None:
    app = press(open_workload(**WORKED), SAMPLE)
    app = checked(app.switch_page("pages/plan.py").run())
    # Of 1,502, 1,665 and 1,690 tokens; the first two names would run into each other's successor.
    assert re.findall(r'kv-triangle" style="[^"]*"><i [^>]*></i><b>(\w*)</b>', curves(app)[-1]) == [
        "",
        "",
        "P99",
    ]
    app = checked(app.segmented_control(key="kv_cache_dtype").set_value("fp8").run())
    assert "traffic" in params(app)
    app = checked(app.switch_page("pages/workload.py").run())
    assert "599" in seen(app)


def test_the_tried_limit_moves_the_histogram_and_the_table() -> None:
    app = press(open_workload(**WORKED), TABLE)
    out = [trace["name"] for trace in figures(app)[0]["data"]]
    assert out == ["needed", "ignored", "taken"]
    app = checked(app.number_input(key="workload.limit").set_value(1000).run())
    assert "tried 1,000" in json.dumps(figures(app)[0]["layout"]["annotations"])
    assert "1,000 <span" in html(app)
    assert "workload.use.1000.tried" in keys(app)
    app = checked(app.select_slider(key="workload.limit.slider").set_value(16384).run())
    assert app.number_input(key="workload.limit").value == 16384


def test_a_present_limit_that_is_too_short_says_whom_it_leaves_out() -> None:
    app = press(open_workload(**(WORKED | {"max_model_len": "4096"})), TABLE)
    assert "21\N{NO-BREAK SPACE}% of them exceed your 4,096" in app.warning[0].value


def test_typed_percentiles() -> None:
    app = open_workload(**WORKED)
    press(app, "workload.typed")
    assert "99 % of the requests need 1,712 tokens" in app.success[0].value
    assert params(app)["lengths"].startswith("800:1150:1200,120:380:512,")
    press(app, "workload.clear")
    assert "lengths" not in params(app)
    app.number_input(key="workload.prompt.P50").set_value(5000)
    press(app, "workload.typed")
    assert "`percentiles-order`" in seen(app)
    assert "lengths" not in params(app)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("empty.jsonl", b"\n", "request-log-empty"),
        ("core.log", b"\x7fELF\x00\x01\x02", "request-log-not-text"),
        ("negative.csv", b"prompt_tokens,x\n-5,1\n-7,2\n", "request-log-absurd"),
        ("newer.log", b"Received request a: params: SamplingParams(max_tokens=5)\n", "request-log-no-length"),
    ],
)
def test_an_unreadable_log_gets_a_code_and_a_next_step(name: str, content: bytes, code: str) -> None:
    app = upload(open_workload(), name, content)
    assert f"`{code}`" in seen(app)
    assert "Next: " in seen(app)
    assert name in seen(app)
    assert not figures(app)


def test_a_log_that_is_too_large_is_not_read_at_all() -> None:
    app = upload(open_workload(), "large.log", b" " * (MAX_LOG_BYTES + 1))
    assert "`request-log-too-large`" in seen(app)
    assert "50 MiB" in seen(app)


def test_an_uploaded_log_is_read_and_hostile_text_stays_text() -> None:
    name = "<img src=x onerror=alert(1)> [a](http:evil).csv"
    app = upload(open_workload(**WORKED), name, b"=HYPERLINK(1),prompt_tokens\n=1+1,900\n+2,1000\n")
    assert "2 requests" in seen(app)
    assert "<img src=x" not in html(app)
    assert "evil" not in "".join(element.value for element in app.markdown)
    found = unpacked(params(app)["traffic"])
    assert (found.prompts.lengths, found.needed.lengths) == ((900, 1000), (901, 1001))


def test_the_log_that_was_read_last_is_one_press_away() -> None:
    app = press(open_workload(**WORKED), SAMPLE)
    del app.query_params["traffic"]
    app = checked(app.run())
    press(app, "workload.again")
    assert "599" in seen(app)


def test_a_bad_link_is_told_and_the_page_asks() -> None:
    app = open_workload(lengths="banana")
    assert "lengths: banana" in seen(app)
    assert SAMPLE in keys(app)


def test_a_deployment_without_room_still_shows_the_lengths() -> None:
    app = open_workload(model="Qwen/Qwen3-32B", accelerator="RTX-4090-24GB", lengths=POST_MORTEM)
    assert "does not start" in app.error[0].value
    assert figures(app)
    assert "weights are too big" in html(app)


def test_a_scenario_that_the_engine_refuses_still_shows_the_lengths() -> None:
    app = open_workload(
        model="Qwen/Qwen3-32B", max_num_batched_tokens="64", max_num_seqs="128", lengths=POST_MORTEM
    )
    assert figures(app)
    assert not app.success


def test_lengths_beyond_the_model() -> None:
    app = open_workload(
        **{**WORKED, "lengths": "60000:70000:80000,90:90:90,60090:70090:80090,60090:70090:80090"}
    )
    assert "does not start" in app.error[0].value
    assert "the model itself allows 40,960" in html(app)


@pytest.mark.parametrize(
    "model", ["openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct"]
)
def test_models_with_other_caches(model: str) -> None:
    app = open_workload(model=model, accelerator="H200-141GB", tensor_parallel_size="8", lengths=POST_MORTEM)
    assert app.success
    assert metrics(app)["Running at once"] != "0"


def test_turns_and_prefix_follow_their_fields() -> None:
    app = open_workload(**WORKED, lengths=POST_MORTEM)
    app = checked(app.number_input(key="workload.given.user").set_value(1000).run())
    app = checked(app.number_input(key="workload.given.reply").set_value(1000).run())
    assert "Not even the first turn" in seen(app)
    app = checked(app.number_input(key="workload.given.prefix").set_value(0).run())
    assert metrics(app)["Stored once"] == "0"
    link = dict(app.query_params)
    assert (link["user"], link["reply"], link["prefix"]) == ("1000", "1000", "0")
    fresh = open_workload(**link)
    assert metrics(fresh)["Stored once"] == "0"
    assert fresh.number_input(key="workload.given.reply").value == 1000


def test_the_longest_request_that_is_read_has_a_page() -> None:
    line = b'{"prompt_tokens": 16777216, "max_tokens": 16777216, "completion_tokens": 5}\n'
    app = open_workload(**WORKED, traffic=read_request_log([line]).traffic.for_link().packed())
    assert app.number_input(key="workload.limit").value == 2 * 16_777_216
    app = checked(app.number_input(key="workload.limit").set_value(2 * 16_777_216 - 256).run())
    assert app.query_params["limit"] == str(2 * 16_777_216 - 256)


def test_the_replay_of_random_arrivals() -> None:
    app = press(open_workload(**WORKED, lengths=POST_MORTEM), "workload.replay.run")
    found = metrics(app)
    assert found["KV use at most"].endswith("%")
    assert float(found["Running on average"]) > 0
    assert "TTFT, P95" not in found
    app = checked(app.segmented_control(key="workload.replay.clock").set_value(ClockKind.USER).run())
    app = checked(app.number_input(key="workload.replay.per_second").set_value(0.5).run())
    app = press(app, "workload.replay.run")
    assert "TTFT, P95" in metrics(app)
    shared = open_workload(**dict(app.query_params))
    assert "From the link: a replay of requests that came at random, 0.5 a second." in seen(shared)
    assert metrics(shared)["TTFT, P95"] == metrics(app)["TTFT, P95"]


def test_the_log_just_read_is_replayed_at_its_own_times() -> None:
    trace = b"".join(
        b'{"timestamp": %d, "input_length": 1024, "output_length": 20, "hash_ids": [%d, %d]}\n'
        % (at, at % 5000 // 1000, at)
        for at in range(0, 50_000, 1000)
    )
    app = upload(open_workload(**WORKED), "trace.jsonl", trace)
    assert "50 requests over 49 seconds, 1.02 a second, replayed when they came." in seen(app)
    assert "Busiest minute (50 requests)" in seen(app)
    app = press(app, "workload.replay.run")
    assert "of the KV cache is in use: one replica carries 16 times this traffic" in app.success[1].value
    # 50 x 1,024 tokens are looked up; 45 of the prompts begin with 512 that an earlier one had.
    found = metrics(app)
    assert found["Prefix hit rate"] == "45\u00a0%"
    assert "a cache that forgets nothing finds" in seen(app)
    # The link carries the replay, as long as the rest of it stays as it was.
    link = dict(app.query_params)
    fresh = open_workload(**link)
    shown = {
        name: metrics(fresh)[name] for name in ("KV use at most", "Running on average", "Prefix hit rate")
    }
    assert shown == {name: found[name] for name in shown}
    assert "one replica carries 16 times this traffic" in fresh.success[1].value
    assert "From the link: a replay of a log that is not in it" in seen(fresh)
    assert "KV use at most" not in metrics(open_workload(**{**link, "max_num_seqs": "17"}))


def test_a_goal_of_latency_gets_its_replicas() -> None:
    lines = [
        {"created": 1_760_000_000 + at / 5, "usage": {"prompt_tokens": 900, "completion_tokens": 60}}
        for at in range(150)
    ]
    log = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    app = upload(open_workload(**WORKED), "gw.jsonl", log)
    # The fastest possible step says nothing of latency, and the page says so.
    assert "says nothing of latency" in seen(app)
    assert "workload.goal.run" not in {button.key for button in app.button}
    app = checked(app.segmented_control(key="workload.replay.clock").set_value(ClockKind.USER).run())
    app = press(app, "workload.goal.run")
    found = metrics(app)
    assert found["Replicas for this goal"] == "1"
    # The link carries the answer, as long as the rest of it stays as it was.
    link = dict(app.query_params)
    fresh = open_workload(**link)
    assert {name: metrics(fresh)[name] for name in ("Headroom", "Replicas for this goal", "P95 TTFT")} == {
        name: found[name] for name in ("Headroom", "Replicas for this goal", "P95 TTFT")
    }
    assert "of a log that is not in it" in seen(fresh)
    assert "Headroom" not in metrics(open_workload(**{**link, "max_num_seqs": "17"}))
    # 900 prompt tokens at 10,000 a second hold up the answers of the others: a tenth of it takes many replicas.
    app = checked(app.number_input(key="workload.goal.ttft").set_value(0.1).run())
    found = metrics(press(app, "workload.goal.run"))
    assert int(found.get("Replicas for this goal", found.get("Engines, data parallel", "0"))) > 1


def test_a_goal_by_the_hour_of_the_day() -> None:
    """At noon a request in 20 seconds, at one o'clock nine a second: each takes its own number of replicas."""
    noon = 1_760_011_200
    times = [noon + 20 * at for at in range(180)] + [noon + 3600 + at / 9 for at in range(200)]
    log = b"".join(
        json.dumps({"created": at, "usage": {"prompt_tokens": 900, "completion_tokens": 60}}).encode() + b"\n"
        for at in times
    )
    app = upload(open_workload(**WORKED), "gw.jsonl", log)
    app = checked(app.segmented_control(key="workload.replay.clock").set_value(ClockKind.USER).run())
    app = checked(app.number_input(key="workload.goal.ttft").set_value(0.15).run())
    assert "Hour (UTC)" not in html(press(app, "workload.goal.run"))
    app = checked(app.checkbox(key="workload.goal.hours").check().run())
    app = press(app, "workload.goal.run")
    rows = re.findall(r"<tr>(.*?)</tr>", html(app).split("Hour (UTC)")[1])
    first, second = (re.findall(r">([^<>]+)<", row) for row in rows[:2])
    assert (first[:2], second[:2]) == (["12", "180"], ["13", "200"])
    assert int(first[3]) < int(second[3])


@pytest.mark.parametrize("tier", [None, "64"])
def test_what_a_tier_of_each_size_buys(tier: str | None) -> None:
    """Twelve documents of 4,096 tokens in turn, of which the pool of an L4 forgets each before it comes again; with a
    tier in the plan as without."""
    trace = b"".join(
        json.dumps({"timestamp": at * 1000, "input_length": 8 * 512, "output_length": 20,
                    "hash_ids": [100 * (at % 12) + one for one in range(8)]}).encode() + b"\n"
        for at in range(48)
    )  # fmt: skip
    asked = {
        "model": "Qwen/Qwen3-8B",
        "accelerator": "L4-24GB",
        "max_model_len": "8192",
        "engine_version": "0.33.0",
    }
    app = upload(
        open_workload(**asked, **({} if tier is None else {"kv_offloading_size": tier})), "docs.jsonl", trace
    )
    app = press(app, "workload.replay.run")
    assert ("Replayed without --kv-offloading-size" in seen(app)) is (tier is not None)
    assert metrics(app)["Prefix hit rate"] == "0\u00a0%"
    rows = [row for row in re.findall(r"<tr>.*?</tr>", html(app)) if "GiB" in row and "knee" in row]
    (knee,) = rows
    # 36 of 48 prompts come again; the last token of a prompt is computed, so its last block of 16 is too.
    assert f"{36 * (4096 - 16):,}" in knee


def test_what_the_log_does_not_say_is_unknown() -> None:
    """A gateway's log with times and without texts, one request too long, one without a time."""
    lines = [
        {"created": 1_760_000_000 + 2 * at, "usage": {"prompt_tokens": 900, "completion_tokens": 40}}
        for at in range(60)
    ]
    lines += [
        {"created": 1_760_000_050, "usage": {"prompt_tokens": 9000, "completion_tokens": 40}},
        {"usage": {"prompt_tokens": 900, "completion_tokens": 40}},
    ]
    log = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    app = upload(open_workload(**WORKED), "gw.jsonl", log)
    assert "61 requests over 118 seconds" in seen(app)
    assert "1 with a prompt of 8,192 tokens or more are left out" in seen(app)
    assert "1 without a time are left out" in seen(app)
    app = press(app, "workload.replay.run")
    assert metrics(app)["Prefix hit rate"] == "unknown"
    none = upload(
        open_workload(**WORKED), "no-times.jsonl", b'{"prompt_tokens": 900, "completion_tokens": 40}\n' * 50
    )
    assert "This log has no times of arrival" in seen(none)
    assert metrics(press(none, "workload.replay.run"))["Prefix hit rate"] == "unknown"


def test_columns_of_other_names_are_chosen_from_menus() -> None:
    table = b"when,tokIn,tokOut\n" + b"".join(
        b"%d,900,%d\n" % (1_760_000_000 + at, 40 + at) for at in range(20)
    )
    app = upload(open_workload(**WORKED), "other.csv", table)
    asked = {field: app.selectbox(key=f"workload.columns.{field}") for field in ("prompt", "completion")}
    assert (asked["prompt"].value, asked["completion"].value) == ("tokIn", "tokOut")
    assert "request-log-columns" not in seen(app)
    app = press(app, "workload.columns.take")
    assert "other.csv: 20 requests" in seen(app)
    lines = b'{"load": {"tokIn": 900, "tokOut": 40}, "when": 5}\n' * 9
    app = upload(open_workload(**WORKED), "other.jsonl", lines)
    assert app.selectbox(key="workload.columns.prompt").value == "load.tokIn"
    assert "other.jsonl: 9 requests" in seen(press(app, "workload.columns.take"))
    swapped = upload(open_workload(**WORKED), "other.csv", table)
    checked(swapped.selectbox(key="workload.columns.prompt").set_value("tokOut").run())
    checked(swapped.selectbox(key="workload.columns.completion").set_value("tokIn").run())
    swapped = press(swapped, "workload.columns.take")
    assert unpacked(params(swapped)["traffic"]).prompts.longest_tokens == 59


def test_columns_of_a_parquet_file_are_chosen_from_menus_too() -> None:
    file = io.BytesIO()
    rows = {"when": range(20), "tokIn": [900] * 20, "tokOut": range(40, 60)}
    parquet.write_table(pyarrow.table({name: list(values) for name, values in rows.items()}), file)
    app = upload(open_workload(**WORKED), "other.parquet", file.getvalue())
    asked = {field: app.selectbox(key=f"workload.columns.{field}") for field in ("prompt", "completion")}
    assert (asked["prompt"].value, asked["completion"].value) == ("tokIn", "tokOut")
    app = press(app, "workload.columns.take")
    assert "other.parquet: 20 requests" in seen(app)
    assert unpacked(params(app)["traffic"]).prompts.longest_tokens == 900


def test_the_target_is_judged_by_both_lengths() -> None:
    """20 requests of 8,192 run at once; the post-mortem's are shorter, so that more of them do."""
    enough = open_workload(**WORKED, lengths=POST_MORTEM, wanted="60")
    assert "With max_model_len 8,192, 20 of the 60 wanted run at once at full length, and about" in seen(
        enough
    )
    assert "enough" in enough.success[0].value
    short = open_workload(**WORKED, lengths=POST_MORTEM, wanted="4000")
    assert "too few" in short.warning[0].value


def test_the_plan_names_both_answers_to_the_target() -> None:
    app = open_workload(**WORKED, lengths=POST_MORTEM, wanted="60")
    app = checked(app.switch_page("pages/plan.py").run())
    assert "With max_model_len 8,192, 20 of the 60 wanted run at once at full length, and about" in seen(app)
    long = open_workload(model="Qwen/Qwen3-32B", accelerator="H100-80GB", max_model_len="40960", lengths=POST_MORTEM,
                         wanted="40")  # fmt: skip
    assert "With max_model_len 1,792, " in long.warning[0].value
    long = checked(long.switch_page("pages/plan.py").run())
    assert "With max_model_len 1,792, " in seen(long)
    none = checked(open_workload(**WORKED, wanted="60").switch_page("pages/plan.py").run())
    assert "with your real lengths" not in seen(none)


def test_same_requests_over_other_settings() -> None:
    app = open_workload(**WORKED, lengths=POST_MORTEM)
    compared = html(press(app, "workload.replay.compare"))
    assert "max_num_seqs" in compared
    app = checked(app.selectbox(key="workload.replay.field").set_value("replicas").run())
    app = press(app, "workload.replay.compare")
    assert "Replicas take the requests in turn" in seen(app)
    table = html(app).split("Running on average, per replica")[1].split("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    assert [row.split("</td>")[0].rsplit(">", 1)[1] for row in rows] == ["1", "2", "4", "8"]


def test_what_breaks_the_prefix_cache_is_shown_and_no_text_kept(caplog: pytest.LogCaptureFixture) -> None:
    rules = "".join(
        f"Rule {at}: answer what was asked, SENTINEL-rule-{at}, and nothing else.\\n" for at in range(20)
    )
    lines = (
        f'{{"prompt": "It is 10:{at:02}.\\n{rules}", "usage": {{"prompt_tokens": 400, "completion_tokens": 9}}}}'
        for at in range(30)
    )
    app = upload(open_workload(), "log.jsonl", "\n".join(lines).encode())
    assert "What breaks the prefix cache" in str([one.label for one in app.expander])
    assert "SENTINEL-rule" not in repr(dict(app.session_state._state.filtered_state)) + caplog.text


BENCH_SENTINEL = "SENTINEL-bench-77"


def bench_result(**changes: Any) -> bytes:
    """The file that vllm bench serve saves of 40 requests whose steps take 10 ms and 20 µs a token."""
    gaps = [[0.01 + 2e-5] * 20 for _ in range(40)]
    found = {"start_times": [at * 0.5 for at in range(40)], "input_lens": [1000] * 40, "ttfts": [0.05] * 40,
             "itls": gaps, "generated_texts": [BENCH_SENTINEL] * 40} | changes  # fmt: skip
    return json.dumps(found).encode()


def test_a_clock_fitted_on_a_dropped_benchmark(caplog: pytest.LogCaptureFixture) -> None:
    app = open_workload(**WORKED, lengths=POST_MORTEM)
    app = checked(app.segmented_control(key="workload.replay.clock").set_value(ClockKind.FITTED).run())
    assert "workload.replay.run" not in keys(app)
    app.file_uploader(key="workload.replay.bench.0").set_value(
        [("b.json", b'{"itls": []}', "application/json")]
    )
    app = checked(app.run())
    assert "This benchmark cannot be used" in seen(app)
    app.file_uploader(key="workload.replay.bench.1").set_value(
        [("b.json", bench_result(), "application/json")]
    )
    app = press(checked(app.run()), "workload.replay.run")
    assert "A step takes 10 ms" in seen(app)
    assert "TTFT, P95" in metrics(app)
    assert BENCH_SENTINEL not in repr(dict(app.session_state._state.filtered_state)) + caplog.text


def test_the_steady_state_with_a_shared_prefix() -> None:
    """The post-mortem's requests run more at once with 500 of their tokens stored once."""
    app = open_workload(**WORKED, lengths=POST_MORTEM)
    shown = [float(one.value) for one in app.metric if one.label == "Running at once"]
    assert len(shown) == 2
    assert shown[1] > shown[0]
    none = open_workload(**WORKED, lengths=POST_MORTEM, prefix="0")
    assert len([one for one in none.metric if one.label == "Running at once"]) == 1


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            {"accelerator": "RTX-4090-24GB"},
            "At this length the engine does not start.",
        ),  # no room for the weights
        (
            {"model": "Alibaba-NLP/gte-Qwen2-7B-instruct", "accelerator": "H100-80GB"},
            "This model keeps nothing of a request, so nothing can be shared.",
        ),
    ],
)
def test_why_nothing_is_shared(query: dict[str, str], said: str) -> None:
    app = open_workload(**{"model": "Qwen/Qwen3-32B", **query}, lengths=POST_MORTEM)
    reasons = ("does not start.", "nothing can be shared.")
    assert [text.value for text in app.text if text.value.endswith(reasons)] == [said]


FIFTY = {
    **WORKED,
    "arrivals": "50",
    "load_prompt": "1200",
    "load_answer": "512",
    "first_token": "0",
    "speed": "15",
}
"""The post-mortem's load on the worked example: 163,840 tokens, 16 x 107 blocks of a request."""


class TestArrivals:
    def test_a_long_stay_is_written_out(self) -> None:
        app = open_workload(**{**FIFTY, "load_answer": "1000000"})
        shown = seen(app) + "".join(f"{card.value}{card.proto.delta}" for card in app.metric)
        assert "66,667 s" in shown
        assert "e+0" not in shown

    def test_arrivals_and_stay_give_requests_replicas_and_cards(self) -> None:
        app = open_workload(**FIFTY)
        shown = metrics(app)
        # 50 x 512 / 15 = 1,706.7; 10,240 blocks / 107 = 95.7; 1,707 / 95 = 17.97
        assert shown["A request stays"] == "34.1 s"
        assert shown["Requests at once"] == "1,707"
        assert shown["GPUs"] == str(18 * 8)

    def test_the_target_goes_to_the_other_pages(self) -> None:
        app = open_workload(**FIFTY)
        by_page = {one.proto.page: dict(parse_qsl(one.proto.query_string)) for one in app.get("page_link")
                   if "Explore" in one.proto.label or "Load test" in one.proto.label}  # fmt: skip
        assert (by_page["explore"]["wanted"], by_page["explore"]["max_model_len"]) == ("1707", "1712")
        assert (by_page["reference"]["section"], by_page["reference"]["load_requests"]) == (
            "going-live",
            "95",
        )
        assert by_page["reference"]["load_rate"] == "2.777778"  # 50 a second over 18 replicas
        app = press(app, "workload.arrivals.plan")
        assert params(app)["data_parallel_size"] == "18"

    def test_experts_are_not_copied_by_data_parallelism(self) -> None:
        app = open_workload(**{**FIFTY, "model": "Qwen/Qwen3-30B-A3B", "measured.weights_gib": "9"})
        assert metrics(app)["GPUs"] != "—"
        assert "workload.arrivals.plan" not in keys(app)

    def test_typed_values_are_in_the_link(self) -> None:
        app = open_workload(**WORKED)
        checked(app.number_input(key="workload.arrivals").set_value(0.25).run())
        assert params(app)["arrivals"] == "0.25"

    def test_answers_faster_than_the_memory_are_reported(self) -> None:
        app = open_workload(**{**FIFTY, "speed": "5000"})
        assert "the memory bandwidth allows at most" in app.warning[0].value
        app = press(app, "workload.arrivals.bound")
        assert not app.warning

    @pytest.mark.parametrize(
        ("query", "why"),
        [
            ({"load_prompt": "9000"}, "more than the context length of 8,192"),
            ({"measured.weights_gib": "20"}, "does not start"),
            ({"tensor_parallel_size": "3"}, "The engine refuses the present scenario"),
        ],
    )
    def test_without_a_fleet_the_law_still_counts(self, query: dict[str, str], why: str) -> None:
        app = open_workload(**{**FIFTY, **query})
        assert metrics(app)["Requests at once"] == "1,707"
        assert metrics(app)["GPUs"] == "—"
        assert why in seen(app)
