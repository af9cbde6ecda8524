"""The verdict, the cards and the fixes in words."""

import re

import pytest

from kvcore.advice.fixes import fixes
from kvcore.advice.vary import concurrency_curve
from kvcore.base.numbers import DASH
from kvcore.base.words import Language, words
from kvcore.charts import summary
from kvcore.charts.curves import curve_lengths
from kvcore.charts.plan_report import ticket_text
from kvcore.charts.summary import Outcome
from kvcore.planning import Plan, Tightness, Verdict, plan
from kvcore.wire.request import scenario_from_request
from tests import present_plans

EN, ZH = words(Language.ENGLISH), words(Language.CHINESE)


def cards(plan: Plan) -> dict[str, summary.Card]:
    curve = concurrency_curve(plan, curve_lengths(plan))
    return {card.label: card for card in summary.cards(plan, curve, EN)}


@pytest.mark.parametrize(
    ("make", "outcome", "words_of_it"),
    [
        (
            present_plans.fits,
            Outcome.FITS,
            ("Fits: ", " at once (", "×); the first leaves ", " per GPU for more"),
        ),
        (
            present_plans.too_long,
            Outcome.CAUTION,
            ("Context too long", "40,960", "per GPU missing"),
        ),
        (present_plans.too_big, Outcome.FAILS, ("Does not fit", "GiB per GPU missing")),
    ],
)
def test_the_sentence_has_a_verdict_and_a_number(make, outcome, words_of_it) -> None:
    sentence = summary.verdict_sentence(make(), EN)
    assert sentence.outcome is outcome
    for word in words_of_it:
        assert word in sentence.text


@pytest.mark.parametrize("make", [present_plans.fits, present_plans.too_long, present_plans.too_big])
def test_the_sentence_is_chinese_in_chinese(make) -> None:
    text = summary.verdict_sentence(make(), ZH).text
    assert "。" not in text
    assert "：" in text
    assert " per " not in text


def test_a_tight_plan_says_so() -> None:
    plan = present_plans.too_long()
    tight = next((fix.plan for fix in fixes(plan) if fix.verdict is Verdict.TIGHT), None)
    assert tight is not None
    sentence = summary.verdict_sentence(tight, EN)
    assert sentence.outcome is Outcome.CAUTION
    length = f"{tight.resolved.max_model_len:,}"
    assert sentence.text.startswith(f"Tight: 1 request of {length} tokens at once (the engine prints 1")
    assert "within the estimate's error. Shorten the context" in sentence.text


def test_memory_taken_after_the_cache_is_named_with_the_possible_shortage() -> None:
    """Not with what stays unused: 2 GiB next to 51 MiB that are taken do not say why it is tight."""
    plan = present_plans.request(
        model="deepseek-ai/DeepSeek-V3.1",
        accelerator="Ascend-910B3-64GB",
        tensor_parallel_size=16,
        max_model_len=32_768,
        quantization="ascend",
    )
    assert plan.tight_by is Tightness.AFTER_POOL
    assert plan.memory is not None
    text = summary.verdict_sentence(plan, EN).text
    free = (plan.memory.unused.value - plan.memory.after_pool.value) / 2**30
    assert f"by the estimate {free:.1f} GiB per GPU stay free" in text
    assert f"up to {-plan.memory.least_room / 2**30:.2f} GiB are missing" in text


def test_the_worked_example_in_four_cards() -> None:
    shown = cards(present_plans.rule_of_thumb())
    assert shown["Requests at once"].value == "20"
    assert shown["KV cache tokens"].value == "163,840"
    assert shown["KV per token"].value == "32 KiB"
    assert shown["KV per token"].note == "per GPU, 256 KiB in all"
    assert shown["Requests at once"].note == "of 8,192 tokens"


def test_a_missing_figure_is_a_dash_with_a_reason() -> None:
    shown = cards(present_plans.too_big())
    for name in ("Requests at once", "KV cache tokens", "Longest request"):
        assert shown[name].value == DASH
        assert shown[name].note
    assert shown["KV per token"].value == "256 KiB"


def test_a_start_that_fails_promises_no_concurrency() -> None:
    shown = cards(present_plans.too_long())
    assert shown["Requests at once"].value == DASH
    assert shown["Longest request"].value != DASH


def test_help_shows_the_formula_and_todays_numbers() -> None:
    help_text = cards(present_plans.rule_of_thumb())["KV per token"].help
    assert "2 × layers × kv_heads × head_dim × element_bytes" in help_text
    assert "2 × 64 × 1 × 128 × 2" in help_text


def test_the_scenario_line_says_what_is_set() -> None:
    line = summary.scenario_line(present_plans.rule_of_thumb(), EN)
    assert line[0] == "GeForce RTX 4090 × 8"
    assert "8,192 tokens" in line
    assert "utilization 0.75" in line
    assert any(part.startswith("vllm 0.") for part in line)


@pytest.mark.parametrize("t", [EN, ZH])
def test_every_fix_has_a_label_of_its_own(t) -> None:
    found = (*fixes(present_plans.too_long()), *fixes(present_plans.too_big()))
    assert found
    for fix in found:
        assert " = " not in summary.fix_label(fix, t), fix.field
        assert summary.fix_result(fix, t)


def test_model_ids_are_not_part_of_any_sentence() -> None:
    plan = present_plans.fits()
    texts = [summary.verdict_sentence(plan, EN).text, *summary.scenario_line(plan, EN)]
    assert not any("Qwen" in text for text in texts)


def test_a_model_that_keeps_nothing_of_a_request_has_no_concurrency() -> None:
    plan = present_plans.request(model="Alibaba-NLP/gte-Qwen2-7B-instruct")
    sentence = summary.verdict_sentence(plan, EN)
    assert sentence.outcome is Outcome.FITS
    assert sentence.text.startswith("Fits: the model keeps nothing of a request, ")
    first = summary.cards(plan, None, EN)[0]
    assert (first.value, first.note) == (DASH, "nothing is kept of a request")


def test_max_num_seqs_bounds_the_requests_that_run_at_once() -> None:
    plan = present_plans.request(accelerator="H200-141GB", max_model_len=512, max_num_seqs=16)
    assert plan.cache is not None
    assert plan.cache.max_concurrency > 100
    text = summary.verdict_sentence(plan, EN).text
    assert text.startswith(
        "Fits: 16 requests of 512 tokens at once (max_num_seqs; the KV cache has room for "
    )
    assert f"room for {plan.cache.max_concurrency:.2f})" in text
    card = cards(plan)["Requests at once"]
    assert card.value == "16"
    assert card.note.startswith("of 512 tokens, by max_num_seqs; the KV cache has room for ")
    assert summary.requests_at_once(plan) == 16


def test_a_newcomer_reads_whole_requests_and_the_engines_figure_beside_them() -> None:
    plan = present_plans.fits()
    assert plan.cache is not None
    concurrency = plan.cache.max_concurrency
    assert not concurrency.is_integer()
    text = summary.verdict_sentence(plan, EN).text
    spare = (plan.available_kv_bytes - plan.cache.needed_bytes) / 2**30
    requests = f"{int(concurrency)} requests of 8,192 tokens at once (the engine prints {concurrency:.2f}×)"
    assert text == f"Fits: {requests}; the first leaves {spare:.1f} GiB per GPU for more"


def test_with_replicas_the_figure_is_of_each() -> None:
    text = summary.verdict_sentence(present_plans.request(data_parallel_size=2), EN).text
    assert "on each of 2 replicas; " in text


def test_a_cache_with_room_for_fewer_than_max_num_seqs_is_the_bound() -> None:
    plan = present_plans.rule_of_thumb()
    assert summary.waiting_seats(plan) is None
    assert summary.requests_at_once(plan) == 20


@pytest.mark.parametrize("t", [EN, ZH])
def test_a_length_beyond_the_models_own_limit_is_no_plain_fit(t) -> None:
    fields = {"accelerator": "H200-141GB", "tensor_parallel_size": 2, "max_model_len": 131_072}
    plan = present_plans.request(**fields)
    assert plan.verdict is Verdict.FITS
    sentence = summary.verdict_sentence(plan, t)
    assert sentence.outcome is Outcome.CAUTION
    assert "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in sentence.text
    assert "40,960" in sentence.text
    allowed = present_plans.request(**fields, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    assert summary.verdict_sentence(allowed, t).outcome is Outcome.FITS
    assert sentence.text.endswith(summary.verdict_sentence(allowed, t).text)


def test_the_ticket_begins_with_the_model() -> None:
    plan = present_plans.fits()
    line = ticket_text(plan, "http://localhost", EN).splitlines()[2]
    assert line.startswith("`Qwen/Qwen3-32B` · H100")
    named = present_plans.renamed(plan, "<b>[x](http://a.b)`\n# big")
    assert ticket_text(named, "http://localhost", EN).splitlines()[2].startswith("`config.json` · H100")


FULL_CARD = {
    "model": "meta-llama/Llama-3.3-70B-Instruct",
    "accelerator": "H100-80GB",
    "tensor_parallel_size": 2,
    "max_model_len": 8192,
}


def test_too_little_free_memory_at_start_comes_first_with_a_utilization_that_works() -> None:
    """vllm/v1/worker/utils.py:request_memory (0.33.0): utilization × total has to be free before anything is loaded.
    An H100 shows 79.19 GiB; 0.99 of them are 78.40."""
    refused = present_plans.request(**FULL_CARD, gpu_memory_utilization=0.99)
    assert (refused.verdict, refused.tight_by) == (Verdict.TIGHT, Tightness.START)
    sentence = summary.verdict_sentence(refused, EN)
    assert sentence.outcome is summary.Outcome.CAUTION
    found = re.fullmatch(
        r"Tight: by the estimate the engine refuses to start: it finds (\d+\.\d+) of 79\.19 GiB free, and GPU memory "
        r"utilization 0\.99 asks for 78\.40 GiB\. It starts at (0\.\d+), with \d+ requests of 8,192 tokens .*",
        sentence.text,
    )
    assert found is not None
    assert float(found[1]) < 78.40
    named = float(found[2])
    assert present_plans.request(**FULL_CARD, gpu_memory_utilization=named).verdict is Verdict.FITS
    above = present_plans.request(**FULL_CARD, gpu_memory_utilization=round(named + 0.01, 2))
    assert above.verdict is not Verdict.FITS
    assert "sequences" not in sentence.text


def test_where_a_lower_utilization_alone_does_not_fit_the_most_that_is_free_is_named() -> None:
    refused = present_plans.request(**FULL_CARD | {"max_model_len": 40_960}, gpu_memory_utilization=0.99)
    assert refused.tight_by is Tightness.START
    text = summary.verdict_sentence(refused, EN).text
    free, most = re.search(r"finds (\d+\.\d+) of .* utilization to (0\.\d\d) at the most", text).groups()
    assert float(most) * 79.19 <= float(free) < (float(most) + 0.01) * 79.19


def test_a_start_whose_kv_memory_is_known_is_not_said_to_be_refused() -> None:
    measured = {"available_kv_gib": 3.0}
    started = present_plans.request(**FULL_CARD, gpu_memory_utilization=0.99, measured=measured)
    assert started.tight_by is not Tightness.START


def test_a_release_that_does_not_look_at_free_memory_does_not_refuse() -> None:
    """vllm/v1/worker/gpu_worker.py:Worker.init_device compares it from 0.9.2 on."""
    old = present_plans.request(**FULL_CARD, gpu_memory_utilization=0.99, engine_version="0.9.1")
    assert old.tight_by is not Tightness.START


def test_a_start_without_any_kv_memory_names_the_overrun_and_what_a_request_needs() -> None:
    """Half of the 36 layers keep all tokens: 18 x 131,072 x 2 x 4 heads x 64 x 2 bytes are 2.25 GiB, and the blocks of
    the other layers' windows come to it."""
    asked = {"model": "openai/gpt-oss-120b", "accelerator": "A100-40GB", "tensor_parallel_size": 2}
    found = plan(scenario_from_request(asked | {"max_model_len": 131072}))
    assert found.memory is not None
    over = -found.memory.available_kv.value / (1 << 30)
    sentence = summary.verdict_sentence(found, EN)
    assert sentence.outcome is Outcome.FAILS
    assert f"{over:.2f} GiB over the budget" in sentence.text
    assert "one request of 131,072 tokens needs 2.3 GiB more" in sentence.text
