"""The last net under the pages: sidebar and a refusal, whatever fails, and a log without the visitor's words."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from streamlit.testing.v1 import AppTest

from kvcore.advice import vary
from kvcore.controls import edit
from kvcore.evidence.log import reader as logs
from kvcore.wire import link
from pages.ui.shared import notes, shell, state
from pages.ui.sidebar import command_source
from tests.page_app import APP, params, seen

SECRET = "what the visitor typed"
QUERY = {"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", "max_model_len": "8192"}


def broken(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(SECRET)


def opened(query: dict[str, str], script: str = "plan.py") -> AppTest:
    app = AppTest.from_file(APP, default_timeout=300)
    app.context = {"locale": "en-US"}
    for name, value in query.items():
        app.query_params[name] = value
    app.run()
    return app if script == "plan.py" else app.switch_page(f"pages/{script}").run()


def assert_sidebar(app: AppTest) -> None:
    """Controls that change what failed."""
    assert app.sidebar.text_input(key="max_model_len").value == "8192"
    assert {"gpu_memory_utilization"} <= {widget.key for widget in app.sidebar.number_input}


def assert_caught(app: AppTest, caplog: pytest.LogCaptureFixture) -> None:
    """No stack, a refusal with its code, every control of the sidebar, and a log that says where, not what."""
    assert not app.exception
    assert "he program failed on this input (RuntimeError)" in seen(app)
    assert ":small[`internal-error`]" in [caption.value for caption in app.caption]
    assert_sidebar(app)
    assert "RuntimeError at tests/test_page_net.py:" in caplog.text
    assert SECRET not in caplog.text + seen(app)


@pytest.mark.parametrize("script", [spec.script for spec in shell.PAGES])
def test_a_plan_that_fails(
    script: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state, "plan", broken)
    with caplog.at_level(logging.ERROR):
        app = opened(QUERY, script)
    assert not app.exception
    assert_sidebar(app)
    assert SECRET not in caplog.text + seen(app)
    assert "RuntimeError at tests/test_page_net.py:" in caplog.text


@pytest.mark.parametrize(
    "part", [(notes, "scenario_head"), (vary, "tensor_parallel_curves"), (notes, "notices")]
)
def test_a_page_that_fails(
    part: tuple[Any, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(*part, broken)
    with caplog.at_level(logging.ERROR):
        assert_caught(opened(QUERY), caplog)


def test_a_link_that_fails(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    decode: Callable[..., Any] = link.decode
    monkeypatch.setattr(
        link, "decode", lambda given, *more: broken() if "block_size" in given else decode(given, *more)
    )
    with caplog.at_level(logging.ERROR):
        app = opened(QUERY | {"block_size": "32", "lang": "en"})
    assert not app.exception
    assert "he program failed on this input (RuntimeError)" in seen(app)
    assert app.success[0].value.startswith("Fits")
    assert SECRET not in caplog.text


def test_a_control_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = opened(QUERY)
    before = params(app)
    monkeypatch.setattr(edit, "with_field", broken)
    with caplog.at_level(logging.ERROR):
        app.text_input(key="max_model_len").set_value("4096").run()
    assert_caught(app, caplog)
    assert params(app) == before


def test_a_command_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = opened(QUERY)
    monkeypatch.setattr(command_source, "read_log", broken)
    assert logs.read_log is not broken
    app.session_state[command_source.POPOVER] = True
    app.run().text_area(key="command_text").set_value(f"vllm serve '{SECRET}'").run()
    with caplog.at_level(logging.ERROR):
        app.button(key="use_command").click().run()
    assert_caught(app, caplog)


def test_stop_and_rerun_pass_the_net() -> None:
    """Pages stop after a refusal, and `guard` reruns: neither is a failure."""
    app = opened(QUERY | {"tensor_parallel_size": "3"})
    assert "`heads-not-divisible`" in seen(app)
    assert not app.success
    assert not [caption.value for caption in app.caption if "internal-error" in caption.value]


def test_imported_modules_are_frozen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.unfreeze()
    monkeypatch.setattr(shell, "_kept", shell._Kept())
    app = opened(QUERY).run()
    kept = gc.get_freeze_count()
    assert kept > len(gc.get_objects())
    app.run()
    assert gc.get_freeze_count() <= kept


def test_a_crowd_that_arrives_together_collects_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def collect() -> None:
        rounds.append(1)
        begun.set()
        assert go_on.wait(60)

    monkeypatch.setattr(gc, "collect", collect)
    kept = shell._Kept()
    first = threading.Thread(target=kept.freeze, args=(100,))
    first.start()
    assert begun.wait(60)
    kept.freeze(100)
    go_on.set()
    first.join(60)
    kept.freeze(100)
    assert rounds == [1]
    kept.freeze(101)
    assert rounds == [1, 1]
