"""Bad files on the Check page: a coded refusal with its place, and no secret in anything that the page shows."""

from __future__ import annotations

import time

import pytest
from streamlit.testing.v1 import AppTest

from pages.ui.check.files import MOST_WORKLOADS
from tests.page_app import checked, open_app, seen
from tests.test_check_bad_input import SECRETS

BOMB = "\n".join(
    (
        "l0: &l0 [x, x, x, x, x, x, x, x, x]",
        *(f"l{at}: &l{at} [{', '.join([f'*l{at - 1}'] * 9)}]" for at in range(1, 20)),
        "services: {a: {image: 'vllm/vllm-openai:v0.30.0', command: *l19}}",
    )
)
TEMPLATE = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: '{{ .Release.Name }}'}
spec:
  template:
    spec:
      containers:
      - name: c
        image: vllm/vllm-openai:v0.30.0
        args: ['--model', '{{ .Values.model }}', '--max-model-len', '{{ .Values.length }}']
"""


@pytest.fixture(scope="module")
def page() -> AppTest:
    return checked(open_app({"check": "files"}).switch_page("pages/check.py").run())


def check(app: AppTest, *files: tuple[str, bytes], text: str = "") -> str:
    """All that the page shows of dropped files and a pasted text."""
    app.text_area(key="check.files.text").set_value(text)
    app.file_uploader(key="check.files.upload").set_value([(*one, "text/plain") for one in files])
    app.selectbox(key="check.files.card").set_value("L4-24GB")
    checked(app.button(key="check.files.go").click().run())
    return everything(app)


def everything(app: AppTest) -> str:
    """Texts, codes and HTML of a page, and its address."""
    parts = [seen(app), *(one.value for one in app.code), *(one.proto.body for one in app.get("html"))]
    return "\n".join((*parts, repr(dict(app.query_params))))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("big.yaml", b"a: 1\n" * (2 << 20), ("big.yaml", "is larger than 4 MiB", "Next: ")),
        ("cycle.yaml", b"a: 1\nb: &x\n  c: *x\n", ("cycle.yaml:3", "Next: ")),
        ("deep.yaml", b"a: " + b"[" * 80 + b"]" * 80, ("deep.yaml:1", "Next: ")),
        ("broken.yaml", b"{{ range .Values.x }}\n- a: {{ . }\n", ("broken.yaml:3", "Next: ")),
        ("p.py", b"def (:\n", ("p.py:1", "Next: ")),
        ("image.yaml", bytes(range(256)) * 8, ("image.yaml", "Next: ")),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_place(
    page: AppTest, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    """A good file beside it is judged all the same."""
    start = time.process_time()
    shown = check(page, (name, content), ("run.sh", b"vllm serve Qwen/Qwen3-8B --max-model-len 8192\n"))
    assert time.process_time() - start < 10
    for word in (*words, "This file cannot be read", "run.sh:1", "Starts"):
        assert word in shown, word


def test_a_bomb_of_aliases_costs_nothing_and_shows_little(page: AppTest) -> None:
    start = time.process_time()
    shown = check(page, ("bomb.yaml", BOMB.encode()))
    assert time.process_time() - start < 10
    for word in ("Cannot be known", "bomb.yaml:21", "The files do not say which model is served", "Next: "):
        assert word in shown, word
    assert len(shown) < 200_000


def test_a_template_that_is_not_rendered_names_what_is_open(page: AppTest) -> None:
    shown = check(page, text=TEMPLATE)
    for word in ("Cannot be known", ".Values.model", ".Values.length", "Next: "):
        assert word in shown, word
    assert "· Starts" not in shown


def test_a_thousand_engines_are_planned_up_to_a_bound(page: AppTest) -> None:
    rows = "".join(f"vllm serve Qwen/Qwen3-8B --max-model-len {2048 + at} &\n" for at in range(1000))
    shown = check(page, ("many.sh", rows.encode()))
    assert f"{MOST_WORKLOADS} · Starts" in shown
    assert "more engines are in these files" in shown


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_of_a_file_is_shown(page: AppTest, name: str) -> None:
    """Dropped, not pasted: the field of the paste holds what its owner typed."""
    shown = check(page, (name, SECRETS[name].encode()))
    assert "Qwen/Qwen3-8B" in shown
    for hidden in ("topsecretword", "hf_hidden"):
        assert hidden not in shown
