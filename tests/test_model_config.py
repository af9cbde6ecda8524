"""config.json as untrusted input: what is read, what is refused and by which name."""

import json
import weakref

import pytest

from kvcore.base.errors import ModelError
from kvcore.model.config import (
    MAX_CONFIG_BYTES,
    MAX_LAYERS,
    ModelConfig,
    Section,
    SharedConfigs,
    class_defaults,
    load_class_defaults,
)


class TestGetters:
    def test_a_value_is_found_under_any_of_its_spellings(self):
        assert Section({"n_embd": 768}).integer("hidden_size") == 768
        assert Section({"d_model": 6144}).integer("hidden_size") == 6144
        assert Section({"n_layer": 12}).layers() == 12

    def test_equal_spellings_agree_and_different_ones_contradict(self):
        assert Section({"n_embd": 768, "hidden_size": 768}).integer("hidden_size") == 768
        with pytest.raises(ModelError) as caught:
            Section({"n_embd": 768, "hidden_size": 1024}).integer("hidden_size")
        assert caught.value.code == "contradicting-config"

    def test_null_is_absent_and_wins_over_the_class_default(self):
        section = Section({"model_type": "mistral", "sliding_window": None})
        assert section.optional_integer("sliding_window") is None
        assert Section({"model_type": "mistral"}).optional_integer("sliding_window") == 4096

    def test_a_whole_float_is_an_integer(self):
        assert Section({"max_position_embeddings": 32768.0}).integer("max_position_embeddings") == 32768

    @pytest.mark.parametrize(
        "value", [-1, 0, 1.5, True, "4096", [4096], {"a": 1}, float("nan"), float("inf"), 10**30]
    )
    def test_an_unusable_integer_is_refused_by_name(self, value):
        with pytest.raises(ModelError) as caught:
            Section({"hidden_size": value}).integer("hidden_size")
        assert (caught.value.code, caught.value.field) == ("invalid-config-value", "config.hidden_size")

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", True, [1.0]])
    def test_an_unusable_number_is_refused(self, value):
        with pytest.raises(ModelError) as caught:
            Section({"factor": value}).number("factor")
        assert caught.value.code == "invalid-config-value"

    def test_a_flag_is_true_false_one_or_zero(self):
        assert Section({"bias": 1}).boolean("bias") is True
        with pytest.raises(ModelError) as caught:
            Section({"bias": "yes"}).boolean("bias")
        assert caught.value.code == "invalid-config-value"

    def test_an_absurd_number_of_layers_is_refused(self):
        with pytest.raises(ModelError) as caught:
            Section({"num_hidden_layers": MAX_LAYERS + 1}).layers()
        assert caught.value.code == "invalid-config-value"

    def test_lists_are_checked_item_by_item(self):
        assert Section({"layer_types": ["a", "b"]}).strings("layer_types") == ("a", "b")
        assert Section({"sizes": [1, 2]}).integers("sizes") == (1, 2)
        for raw, read in (({"sizes": [1, "2"]}, Section.integers), ({"sizes": [None]}, Section.strings)):
            with pytest.raises(ModelError) as caught:
                read(Section(raw), "sizes")
            assert caught.value.code == "invalid-config-value"

    def test_a_missing_key_is_named_with_its_place(self):
        with pytest.raises(ModelError) as caught:
            ModelConfig.from_mapping({"text_config": {"model_type": "x"}}).language.integer("hidden_size")
        assert (caught.value.code, caught.value.field) == (
            "missing-config-key",
            "config.text_config.hidden_size",
        )

    def test_untrusted_text_is_shortened_in_the_message(self):
        with pytest.raises(ModelError) as caught:
            Section({"hidden_size": "x" * 5000}).integer("hidden_size")
        assert len(str(caught.value)) < 300


class TestSections:
    @pytest.mark.parametrize("name", ["text_config", "llm_config", "language_config"])
    def test_the_language_part_is_found_where_multimodal_configs_keep_it(self, name):
        config = ModelConfig.from_mapping({"hidden_size": 1, name: {"hidden_size": 2048}})
        assert config.language.integer("hidden_size") == 2048

    def test_it_may_be_nested_twice(self):
        raw = {"thinker_config": {"text_config": {"hidden_size": 3584}}}
        assert ModelConfig.from_mapping(raw).language.path == "config.thinker_config.text_config"

    def test_a_nested_part_takes_the_defaults_of_its_own_type(self):
        raw = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
        language = ModelConfig.from_mapping(raw).language
        assert (language.integer("hidden_size"), language.integer("vocab_size")) == (4096, 32064)

    def test_without_a_type_of_its_own_it_takes_those_of_its_parent(self):
        raw = {"model_type": "qwen2_vl", "vision_config": {"hidden_size": 1536}}
        assert ModelConfig.from_mapping(raw).root.section("vision_config").integer("embed_dim") == 1280

    def test_the_root_never_takes_a_size_from_the_class(self):
        with pytest.raises(ModelError) as caught:
            ModelConfig.from_mapping({"model_type": "llama"}).root.integer("hidden_size")
        assert caught.value.code == "missing-config-key"

    def test_a_section_that_is_no_object_is_refused(self):
        with pytest.raises(ModelError) as caught:
            ModelConfig.from_mapping({"vision_config": 3}).root.section("vision_config")
        assert caught.value.code == "invalid-config-value"


class TestModelConfig:
    def test_two_configs_are_equal_when_their_json_is(self):
        first = ModelConfig.from_mapping({"a": 1, "b": 2})
        second = ModelConfig.from_mapping({"b": 2, "a": 1})
        assert (first, hash(first)) == (second, hash(second))
        assert first != ModelConfig.from_mapping({"a": 1, "b": 3})
        assert first != ModelConfig.from_mapping({"a": 1, "b": 2}, {"quantization": {}, "producer": {}})

    def test_something_else_than_an_object_is_refused(self):
        with pytest.raises(ModelError) as caught:
            ModelConfig.from_mapping(json.loads("[1]"))
        assert caught.value.code == "invalid-config-value"

    @pytest.mark.parametrize(
        ("raw", "dtype"),
        [
            ({"torch_dtype": "float16"}, "float16"),
            ({"dtype": "bfloat16"}, "bfloat16"),
            ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
            ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
            ({"vision_config": {"torch_dtype": "float16"}}, "float16"),
            ({}, "float32"),
        ],
    )
    def test_the_dtype_is_looked_for_in_the_root_the_language_and_the_vision_part(self, raw, dtype):
        assert ModelConfig.from_mapping(raw).dtype == dtype

    def test_an_unknown_dtype_is_refused(self):
        with pytest.raises(ModelError) as caught:
            _ = ModelConfig.from_mapping({"torch_dtype": "int3"}).dtype
        assert caught.value.code == "invalid-config-value"


class TestClassDefaults:
    def test_a_type_whose_class_is_not_known_has_none(self):
        assert dict(class_defaults("no-such-model")) == {}

    def test_facts_of_known_classes(self):
        assert class_defaults("gemma")["head_dim"] == 256
        assert class_defaults("mistral")["num_key_value_heads"] == 8
        assert class_defaults("starcoder2")["tie_word_embeddings"] is True

    def test_values_that_a_class_computes_are_no_defaults(self):
        assert "num_key_value_heads" not in class_defaults("llama")
        assert "head_dim" not in class_defaults("mistral")

    def test_every_table_names_numbers_texts_and_flags_only(self):
        for values in load_class_defaults().values():
            assert all(isinstance(value, bool | int | float | str) for value in values.values())


class TestSizes:
    @pytest.mark.parametrize("part", ["config", "hf_quant_config"])
    def test_eight_mebibytes_are_the_most(self, part):
        large = {"model_type": "llama", "x": "y" * MAX_CONFIG_BYTES}
        given = (large, None) if part == "config" else ({"model_type": "llama"}, large)
        with pytest.raises(ModelError) as caught:
            ModelConfig.from_mapping(*given)
        assert (caught.value.code, caught.value.field, caught.value.params["limit"]) == (
            "input-too-large",
            part,
            "8 MiB",
        )


class TestSharedConfigs:
    def test_equal_configs_are_one_and_others_are_not(self):
        shared = SharedConfigs()
        first = shared.read({"model_type": "llama", "hidden_size": 64})
        assert shared.read({"hidden_size": 64, "model_type": "llama"}) is first
        assert shared.read({"model_type": "llama", "hidden_size": 65}) is not first
        assert shared.read({"model_type": "llama", "hidden_size": 64}, {"quantization": {}}) is not first

    def test_those_asked_for_last_are_kept_in_so_many_characters(self):
        first, second, third = ({"model_type": letter * 1000} for letter in "abc")
        shared = SharedConfigs(most_characters=2500)
        kept, gone = shared.read(first), weakref.ref(shared.read(second))
        assert shared.read(first) is kept
        shared.read(third)
        assert shared.read(first) is kept
        assert gone() is None
