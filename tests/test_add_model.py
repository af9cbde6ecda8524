"""The command that adds a model: what it writes, and what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import add_model  # noqa: E402

from kvcore.catalogue.models import read_entry  # noqa: E402

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
}
ATTENTION = 64 * (4 + 2 + 2) * 16 + 4 * 16 * 64
LAYER = ATTENTION + 3 * 64 * 96 + 2 * 64
EMBEDDING = 128 * 64
PARAMETERS = EMBEDDING + 3 * LAYER + 64


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where entries are written."""
    written = tmp_path / "models"
    written.mkdir()
    monkeypatch.setattr(add_model, "FOLDER", written)
    return written


def checkpoint(tmp_path: Path, config: dict[str, Any] = LLAMA, **side_files: object) -> str:
    home = tmp_path / "checkpoint"
    home.mkdir()
    for name, content in {"config": config, **side_files}.items():
        (home / f"{name}.json").write_text(json.dumps(content))
    return str(home)


def add(*arguments: object) -> int:
    return add_model.main([str(argument) for argument in arguments])


def test_an_entry_of_a_folder(tmp_path: Path, folder: Path) -> None:
    home = checkpoint(tmp_path)
    assert add("a/b", "--config", home, "--source", "a test", "--total-size", 2 * PARAMETERS) == 0
    entry = read_entry("a__b.toml", (folder / "a__b.toml").read_text())
    assert entry.config.raw == {key: value for key, value in LLAMA.items() if key != "bos_token_id"}
    assert (entry.checkpoint.total_size, entry.source) == (2 * PARAMETERS, "a test")


@pytest.mark.parametrize(
    ("option", "value", "status"),
    [
        ("--total-parameters", PARAMETERS, 0),
        ("--total-size", 2 * (PARAMETERS + EMBEDDING), 0),  # a tied embedding stored twice
        ("--total-size", 4 * PARAMETERS, 1),
        ("--total-parameters", 2 * PARAMETERS, 1),
        ("--total-parameters", int(PARAMETERS * 0.97), 1),
    ],
)
def test_the_published_figure_must_be_the_counted_one(
    tmp_path: Path, folder: Path, option: str, value: int, status: int
) -> None:
    assert add("a/b", "--config", checkpoint(tmp_path), "--source", "a test", option, value) == status
    assert (folder / "a__b.toml").exists() is (status == 0)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {**LLAMA, "architectures": ["NobodyForCausalLM"], "model_type": "nobody"},
        {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"},
        {**LLAMA, "quantization_config": {"quant_method": "unheard_of"}},
    ],
)
def test_a_config_that_is_not_read_exactly_is_refused(
    tmp_path: Path, folder: Path, config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert add("a/b", "--config", checkpoint(tmp_path, config), "--source", "a test") == 1
    assert "a/b refused: " in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_side_files_belong_to_the_model(tmp_path: Path, folder: Path) -> None:
    home = checkpoint(tmp_path, quantize_config={"bits": 4, "group_size": 32, "desc_act": False})
    assert add("a/b", "--config", home, "--source", "a test") == 0
    entry = read_entry("a__b.toml", (folder / "a__b.toml").read_text())
    assert entry.config.raw["quantization_config"] == {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": False,
    }


@pytest.mark.parametrize("option", [(), ("--sentence-transformers",)], ids=["in the folder", "said"])
def test_a_sentence_transformers_checkpoint_may_lack_the_head(
    tmp_path: Path, folder: Path, option: tuple[str, ...]
) -> None:
    untied = {**LLAMA, "tie_word_embeddings": False}
    home = checkpoint(tmp_path, untied, **({} if option else {"modules": []}))
    stored = ("--total-parameters", PARAMETERS)
    assert add("a/b", "--config", home, "--source", "a test", *option, *stored) == 0
    entry = read_entry("a__b.toml", (folder / "a__b.toml").read_text())
    assert entry.checkpoint.sentence_transformers is True
    (tmp_path / "checkpoint" / "modules.json").unlink(missing_ok=True)
    assert add("a/c", "--config", home, "--source", "a test", *stored) == 1


def test_the_shape_of_a_bundled_model_with_another_length(folder: Path) -> None:
    assert (
        add(
            "a/b", "--same-as", "Qwen/Qwen3-32B", "--source", "a tune", "--set", "max_position_embeddings=8192",
            "--total-parameters", 32_762_123_264,
        )
        == 0
    )  # fmt: skip
    entry = read_entry("a__b.toml", (folder / "a__b.toml").read_text())
    assert entry.config.raw["max_position_embeddings"] == 8192
    assert entry.config.raw["hidden_size"] == 5120
    assert entry.source == "values of Qwen/Qwen3-32B: a tune"


def test_an_id_is_owner_and_name(tmp_path: Path, folder: Path) -> None:
    assert add("../b", "--config", checkpoint(tmp_path), "--source", "a test") == 1
    assert not list(folder.iterdir())


def test_facts_from_a_file_need_their_source(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(SystemExit):
        add("a/b", "--config", checkpoint(tmp_path))
    assert not list(folder.iterdir())
