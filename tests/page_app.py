"""The app in AppTest, without a browser, and what is seen on a page."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

from streamlit.testing.v1 import AppTest

APP = str(Path(__file__).resolve().parents[1] / "app.py")
WORKED = {
    "model": "Qwen/Qwen3-32B", "accelerator": "RTX-4090-24GB", "tensor_parallel_size": "8",
    "gpu_memory_utilization": "0.75", "max_model_len": "8192", "dtype": "float16",
}  # fmt: skip
RULE_OF_THUMB = WORKED | {
    "accelerator.memory_gib": "24", "measured.weights_gib": "8", "measured.non_torch_gib": "5",
    "measured.peak_activation_gib": "0", "measured.cuda_graph_gib": "0",
}  # fmt: skip
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 128256, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Of an uploaded model."""
FOLDED = (
    "more",
    "share",
    "numbers",
    "model_sources",
    "accelerator_sources",
    "engine_choice",
    "command_source",
)


def open_app(params: dict[str, str] | None = None, locale: str = "en-US", opened: bool = True) -> AppTest:
    app = AppTest.from_file(APP, default_timeout=300)
    app.context = {"locale": locale}
    for part in FOLDED if opened else ():
        app.session_state[f"{part}.opened"] = True
    for name, value in (params or {}).items():
        app.query_params[name] = value
    return checked(app.run())


def checked(app: AppTest) -> AppTest:
    """The same, after a run that failed nowhere: neither under Streamlit's own eyes nor in the net below a page."""
    assert not app.exception, app.exception
    assert not [caption.value for caption in app.caption if "internal-error" in caption.value]
    return app


def params(app: AppTest) -> dict[str, str]:
    return {
        name: values[-1] if isinstance(values, list) else values for name, values in app.query_params.items()
    }


def metrics(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def curves(app: AppTest) -> list[str]:
    """The drawn curves as HTML."""
    return [html.proto.body for html in app.get("html") if 'class="kv-plot"' in html.proto.body]


def figures(app: AppTest) -> list[dict]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def stacks(app: AppTest) -> list[str]:
    """The drawings of memory, as HTML."""
    return [element.proto.body for element in app.get("html") if 'class="kv-stack' in element.proto.body]


def seen(app: AppTest) -> str:
    kinds = (app.caption, app.markdown, app.success, app.warning, app.error, app.text, app.subheader)
    drawn = [element.proto.body for element in app.get("html") if 'class="kv-head' in element.proto.body]
    texts = [unescape(re.sub(r"<[^>]*>", "\n", body)) for body in drawn]
    return "\n".join((*(element.value for kind in kinds for element in kind), *texts))
