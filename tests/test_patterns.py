"""Patterns of strangers: as `re` matches them, in linear time, or refused with a code."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcore.base.errors import ModelError
from kvcore.model.config import MAX_NAMES
from kvcore.model.quantization.patterns import MAX_STEPS, Allowance, Patterns
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from tests.cpu import answer_within

MODULES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.experts.0.gate_proj",
    "mlp.experts.0.up_proj",
    "mlp.experts.0.down_proj",
    "mlp.gate",
)
NAMES = [f"model.layers.{layer}.{module}" for layer in range(256) for module in MODULES]

PIECES = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "[ab]",
        "[^a]",
        "[a-b1]",
        r"\w",
        r"\d",
        r"[\d\W]",
        "1",
        r"\.",
        r"\n",
        "^",
        "$",
        r"\b",
        r"\B",
        r"\Z",
    ]
)
REPEATS = st.sampled_from(["*", "+", "?", "*?", "{2}", "{0,2}", "{1,}", "{1,3}?"])


def larger(pieces: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(pieces, pieces).map("".join),
        st.tuples(pieces, pieces).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(pieces, REPEATS).map(lambda both: f"(?:{both[0]}){both[1]}"),
        st.tuples(st.sampled_from(["", "?=", "?!", "?<=", "?<!"]), pieces).map(
            lambda both: f"({both[0]}{both[1]})"
        ),
    )


PATTERNS = st.recursive(PIECES, larger, max_leaves=8)


class TestAsReMatches:
    @settings(max_examples=600, deadline=None)
    @given(
        st.lists(PATTERNS, min_size=1, max_size=3), st.text("ab1.\n", min_size=1, max_size=6), st.booleans()
    )
    def test_the_first_pattern_that_matches_is_the_one_that_re_finds(self, texts, name, whole):
        try:
            compiled = [re.compile(text) for text in texts]
        except re.error:  # a look-behind of several widths
            with pytest.raises(ModelError, match="fixed-width"):
                Patterns(texts, Allowance())
            return
        found = [bool(one.fullmatch(name) if whole else one.match(name)) for one in compiled]
        expected = found.index(True) if True in found else None
        assert Patterns(texts, Allowance(), whole=whole).first(name) == expected

    @pytest.mark.parametrize(
        "pattern",
        [
            r".*attn.*",
            r"^(?!.*mlp\.experts).*$",
            r".*\.(?:18|19)\..*",
            r".*layers\.\d+\.mlp\.experts\.\d+\..*",
            r"(?<!vision)\w+\.layers\.[0-2]\..*",
            r"model\.layers\.(?:[1-9]|1\d)\.self_attn\.[qkv]_proj$",
            r".*(?:gate|up)_proj",
        ],
    )
    def test_patterns_as_they_are_published(self, pattern):
        patterns, expected = Patterns([pattern], Allowance()), re.compile(pattern)
        found = [patterns.first(name) == 0 for name in NAMES]
        assert found == [expected.match(name) is not None for name in NAMES]
        assert True in found
        assert False in found

    def test_many_names_take_few_steps_of_those_that_are_allowed(self):
        allowance = Allowance()
        patterns = Patterns([rf"model\.layers\.{layer}\..*gate.*" for layer in range(60)], allowance)
        assert [patterns.first(name) is not None for name in NAMES].count(True) == 60 * 2
        assert MAX_STEPS - allowance.steps < MAX_STEPS / 4


HOSTILE = {
    "several repeats": ([".*.*.*.*x0"] * 200, None),
    "nested repeats": (["(a*)*b", "((.*)*)*b", r"([\w.]+)+!"], None),
    "alternatives alike": (["(a|a)*b", "(.|.)*!", "((.|.)|.)*!"], None),
    "optional": ([".?" * 200 + "!"], ""),
    "nested groups": (["(" * 64 + "!" + ")*" * 64 + "!"], None),
    "states without end": ([f"(?:.*a.{{{n}}}|.*o.{{{n}}})" for n in range(20, 200)], "too-many-patterns"),
    "states as names need them": ([f"(.*[a-m].{{{n}}}.*|.*[n-z].{{{n}}}.*)!" for n in range(1, 60)], ""),
    "looking around": ([f"(?=.*a{n})(?!.*b)(?<=x)" for n in range(4000)], "too-many-patterns"),
    "looking around in looking around": (["(?=.*(?=.*(?=.*(?=.*x))))" * 5] * 9, ""),
    "powers": (["((((a{9}){9}){9}){9}){9}"], "too-many-patterns"),
    "nothing, often": (["(?:){4000000000}"], "too-many-patterns"),
    "classes of their own": (
        ["".join(f"[{chr(0x4E00 + 128 * n + m)}!]" for m in range(128)) for n in range(60)],
        None,
    ),
    "long": (["a" * 513], "unsupported-pattern"),
    "many": ([f"{n}" for n in range(1025)], "too-many-patterns"),
    "long and many": (["a" * 500] * 4096, "too-many-patterns"),
    "too many groups": (["(" * 65 + "a" + ")" * 65], "unsupported-pattern"),
    "verbose": ([r"(?x)([\w.]+) +!"], "unsupported-pattern"),
    "flags": (["(?i)a"], "unsupported-pattern"),
    "flags of a group": (["(?i:a)"], "unsupported-pattern"),
    "flags taken off": (["(?-s:a)"], "unsupported-pattern"),
    "a reference": ([r"(a)\1"], "unsupported-pattern"),
    "a condition": (["(a)?(?(1)b|c)"], "unsupported-pattern"),
    "possessive": (["a*+b"], "unsupported-pattern"),
    "atomic": (["(?>a*)b"], "unsupported-pattern"),
    "broken": (["["], "unsupported-pattern"),
    "repeated too often": (["a{99999999999999999999}"], "unsupported-pattern"),
}


def answered(texts: list[str]) -> str | None:
    """The code of the refusal; None where all names were asked about, and none matched."""
    try:
        patterns = Patterns(texts, Allowance())
        assert {patterns.first(name) for name in NAMES} == {None}
    except ModelError as error:
        return (
            error.code if error.field == "config.quantization_config" and error.next_step else "of no field"
        )
    return None


class TestHostile:
    @pytest.mark.parametrize(("texts", "code"), HOSTILE.values(), ids=HOSTILE.keys())
    def test_it_is_answered_or_refused_within_a_second(self, texts, code):
        answer = answer_within(1, lambda: answered(texts))
        assert answer == code or (code == "" and answer in (None, "module-lists-too-costly"))

    def test_the_steps_of_a_config_are_counted_over_all_of_its_lists(self):
        allowance = Allowance(steps=1000)
        lists = [Patterns([".*a.*"], allowance) for _ in range(3)]
        with pytest.raises(ModelError) as caught:
            list(itertools.starmap(Patterns.first, itertools.product(lists, NAMES)))
        assert caught.value.code == "module-lists-too-costly"


CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 1024,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "intermediate_size": 128, "vocab_size": 1000,
    "max_position_embeddings": 4096, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "torch_dtype": "bfloat16",
}  # fmt: skip
NAMES_OF_EXPERTS = [f"model.layers.{n % 1024}.mlp.experts.{n}.gate_proj" for n in range(MAX_NAMES)]
COMPRESSED = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {
        "all": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
        }
    },
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
FLOAT8 = {"_type": "Float8WeightOnlyConfig", "_version": 2, "_data": {}}
LISTS = {
    "compressed-tensors, names": {**COMPRESSED, "ignore": NAMES_OF_EXPERTS},
    "compressed-tensors, patterns": {**COMPRESSED, "ignore": [f"re:.*.*.*x{n}" for n in range(1000)]},
    "compressed-tensors, groups": {
        **COMPRESSED,
        "config_groups": {str(n): {**COMPRESSED["config_groups"]["all"], "targets": [f"x{n}"]} for n in range(5000)},
    },
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": NAMES_OF_EXPERTS},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32, "modules_to_not_convert": NAMES_OF_EXPERTS},
    "gptq": {**GPTQ, "modules_in_block_to_quantize": NAMES_OF_EXPERTS},
    "gptq, dynamic": {**GPTQ, "dynamic": {f"+:{n}.*.*x": {"bits": 8} for n in range(1000)}},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": NAMES_OF_EXPERTS},
    "modelopt, wildcards": {
        "quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": [f"*{n}*x*y" for n in range(1000)],
    },
    "modelopt, mixed": {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {f"shared_expert.{n}": {"quant_algo": "FP8"} for n in range(30_000)},
    },
    "auto-round": {
        "quant_method": "auto-round", "bits": 4, "group_size": 32, "block_name_to_quantize": NAMES_OF_EXPERTS,
        "extra_config": {name: {"bits": 8} for name in NAMES_OF_EXPERTS},
    },
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": NAMES_OF_EXPERTS},
    "torchao": {
        "quant_method": "torchao", "modules_to_not_convert": NAMES_OF_EXPERTS,
        "quant_type": {
            "default": {
                "_type": "ModuleFqnToConfig", "_version": 1,
                "_data": {"module_fqn_to_config": {f"re:.*{n}.*x": FLOAT8 for n in range(1000)}},
            }
        },
    },
}  # fmt: skip


def planned(config: dict) -> str:
    try:
        scenario = scenario_from_request({"model": "a/b", "config": config, "accelerator": "H100-SXM-80GB"})
        return "planned" if plan(scenario).weights.parameters > 0 else "nothing"
    except ModelError as error:
        return error.code


@pytest.fixture(scope="module")
def tables_are_read() -> None:
    """As in a server that has planned before."""
    assert planned(CONFIG) == "planned"


@pytest.mark.usefixtures("tables_are_read")
class TestHostileConfigs:
    @pytest.mark.parametrize("quantization", LISTS.values(), ids=LISTS.keys())
    def test_a_deep_model_with_long_lists_is_planned_or_refused_within_a_second(self, quantization):
        answer = answer_within(1, lambda: planned({**CONFIG, "quantization_config": quantization}))
        assert answer in ("planned", "module-lists-too-costly", "too-many-patterns")
