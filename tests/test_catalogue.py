"""The bundled facts: every entry loads strictly, and what logs print finds the right card."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcore import catalogue
from kvcore.base.errors import CatalogueError
from kvcore.base.quantity import Grade
from kvcore.base.units import GIB, gib
from kvcore.base.words import Language, words
from kvcore.catalogue.accelerators import Accelerator, Interconnect, Vendor, read_accelerators
from kvcore.catalogue.models import (
    Checkpoint,
    _load,
    model_ids,
    names_of,
    read_entry,
    unfold,
)
from kvcore.model.config import ModelConfig
from kvcore.planning import plan
from kvcore.scenario import Measured, Scenario, SpeculativeConfig
from kvcore.wire.request import scenario_from_request
from tools.catalogue_entry import UNUSED_KEYS, entry_text, fold, patterns_of

CARD = """
[Card-1GB]
name = "Card"
vendor = "nvidia"
memory_gib = 0.9
memory_grade = "exact"
interconnect = "pcie"
source = "a log"
checked = 2026-11-21
"""


class TestAccelerators:
    @pytest.mark.parametrize("card", catalogue.load_accelerators(), ids=lambda card: card.id)
    def test_every_entry_is_usable_in_a_link_and_sourced(self, card: Accelerator) -> None:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", card.id)
        assert quote(card.id) == card.id
        assert len(card.source) > 10
        assert datetime.date(2026, 1, 1) <= datetime.date.fromisoformat(card.checked)
        assert card.memory_grade in (Grade.EXACT, Grade.ASSUMED)
        assert "LOG:" not in card.source
        assert "GH:" not in card.source
        for text in (card.id, card.name, *card.aliases):
            assert catalogue.find_accelerator(text) is card

    @pytest.mark.parametrize("card", catalogue.load_accelerators(), ids=lambda card: card.id)
    def test_no_memory_is_the_marketing_figure(self, card: Accelerator) -> None:
        marketed = re.search(r"(\d+)GB$", card.id)
        assert marketed is not None
        assert 0.78 * int(marketed[1]) <= card.memory_gib < int(marketed[1])

    @pytest.mark.parametrize(
        ("driver", "card", "gib"),
        [
            ("NVIDIA H200 MIG 2g.35gb", "H200-MIG-35GB", 32.5),
            ("NVIDIA H200 MIG 1g.18gb", "H200-MIG-18GB", 16.0),
            ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "H100-MIG-40GB", 39.5),
            ("NVIDIA B200 MIG 2g.45gb", "B200-MIG-45GB", 44.25),
            ("MI355X DPX", "MI355X-DPX-144GB", 143.99),
            ("NVIDIA H20-3e", "H20-141GB", 139.81),
            ("NVIDIA RTX PRO 5000 72GB Blackwell", "RTX-PRO-5000-72GB", 71.16),
            ("Intel(R) Arc(TM) Pro B70 Graphics", "Arc-Pro-B70-32GB", 31.89),
            ("Ascend950PR_9589", "Ascend-950PR-128GB", 119.04),
            ("DGX Station GB300", "DGX-Station-GB300-252GB", 249.84),
        ],
    )
    def test_what_drivers_call_it(self, driver: str, card: str, gib: float) -> None:
        found = catalogue.find_accelerator(driver)
        assert (found.id, found.memory_gib) == (card, gib)
        assert found.is_part is ("-MIG-" in card or "-DPX-" in card)

    def test_there_are_enough_of_each_vendor(self) -> None:
        cards = catalogue.load_accelerators()
        assert len(cards) >= 100
        assert {card.vendor for card in cards} == set(Vendor)
        assert sum(card.vendor is Vendor.HUAWEI for card in cards) >= 8

    def test_cuda_cards_have_a_capability_and_integrated_ones_are_alone(self) -> None:
        for card in catalogue.load_accelerators():
            assert (card.compute_capability is not None) == (card.vendor is Vendor.NVIDIA), card.id
            if card.is_integrated:
                assert (card.interconnect, card.devices_per_node) == (Interconnect.NONE, 1), card.id

    @pytest.mark.parametrize(
        ("accelerator", "memory_gib", "grade"),
        [
            # torch's own totals in published logs
            ("H100-80GB", 79.19, Grade.EXACT),
            ("H200-141GB", 139.81, Grade.EXACT),
            ("B200-180GB", 178.35, Grade.EXACT),
            ("L4-24GB", 22.05, Grade.EXACT),
            ("T4-16GB", 14.56, Grade.EXACT),
            ("Ascend-910B3-64GB", 60.96, Grade.EXACT),
            ("GB10-128GB", 121.63, Grade.EXACT),
            # 49,140 MiB of nvidia-smi = 47.988 GiB, less 0.40 and 0.18 %
            ("RTX-A6000-48GB", 47.50, Grade.ASSUMED),
            # 24,576 MiB = 24 GiB, less 0.40 and 0.18 %
            ("A30-24GB", 23.56, Grade.ASSUMED),
            # 21,527 MB = 21.02 GiB, less 7 %
            ("Ascend-310P3-24GB", 19.55, Grade.ASSUMED),
        ],
    )
    def test_memory(self, accelerator: str, memory_gib: float, grade: Grade) -> None:
        card = catalogue.find_accelerator(accelerator)
        assert (card.memory_gib, card.memory_grade) == (memory_gib, grade)

    @pytest.mark.parametrize(
        ("text", "accelerator"),
        [
            ("NVIDIA H100 80GB HBM3", "H100-80GB"),
            ("h100_80gb", "H100-80GB"),
            ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
            ("Tesla T4", "T4-16GB"),
            ("NVIDIA GeForce RTX 4090", "RTX-4090-24GB"),
            ("RTX 4090", "RTX-4090-24GB"),
            ("DGX Spark", "GB10-128GB"),
            ("Ascend 910B3", "Ascend-910B3-64GB"),
            ("amd instinct mi300x", "MI300X-192GB"),
        ],
    )
    def test_names_that_logs_print(self, text: str, accelerator: str) -> None:
        assert catalogue.find_accelerator(text).id == accelerator

    def test_an_unknown_one_has_near_matches(self) -> None:
        with pytest.raises(CatalogueError) as caught:
            catalogue.find_accelerator("H100-80G")
        assert caught.value.code == "unknown-accelerator"
        assert "H100-80GB" in caught.value.params["near"]

    @pytest.mark.parametrize("text", ["", "x" * 100_000, "\x00", "../../etc", "{value}"])
    def test_any_text_is_refused_by_code(self, text: str) -> None:
        with pytest.raises(CatalogueError) as caught:
            catalogue.find_accelerator(text)
        assert caught.value.code == "unknown-accelerator"
        assert str(caught.value).isprintable()


class TestReadAccelerators:
    def test_the_smallest_entry(self) -> None:
        (card,) = read_accelerators(CARD)
        assert (card.id, card.devices_per_node, card.aliases) == ("Card-1GB", 8, ())

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('source = "a log"\n', ""),
            ('source = "a log"', 'source = " "'),
            ("checked = 2026-11-21", 'checked = "yesterday"'),
            ('name = "Card"', "name = 3"),
            ("[Card-1GB]", '["Card 1GB"]'),
            ("[Card-1GB]", '["Card/1GB"]'),
            ('vendor = "nvidia"', 'vendor = "nvidea"'),
            ("memory_gib = 0.9", "memory_gib = -0.9"),
            ("memory_gib = 0.9", "memory_gib = 2048.0"),
            ("memory_gib = 0.9", "memory_gib = nan"),
            ('memory_grade = "exact"', 'memory_grade = "sure"'),
            ('interconnect = "pcie"', 'interconnect = "cable"'),
            ('interconnect = "pcie"', 'interconnect = "pcie"\ncolour = "green"'),
            ('interconnect = "pcie"', 'interconnect = "pcie"\ncompute_capability = [9]'),
            ('interconnect = "pcie"', 'interconnect = "pcie"\ncompute_capability = "9.0"'),
            ('interconnect = "pcie"', 'interconnect = "pcie"\nis_integrated = 1'),
            ('interconnect = "pcie"', 'interconnect = "pcie"\ndevices_per_node = 0'),
            ('interconnect = "pcie"', 'interconnect = "pcie"\naliases = "Card A"'),
            ("[Card-1GB]", "Card = 3\n[Card-1GB]"),
        ],
    )
    def test_a_wrong_entry_is_named_with_its_file(self, old: str, new: str) -> None:
        assert old in CARD
        with pytest.raises(CatalogueError) as caught:
            read_accelerators(CARD.replace(old, new))
        assert caught.value.code == "invalid-catalogue-entry"
        assert caught.value.field.startswith("accelerators.toml:Card")

    @pytest.mark.parametrize("second", [CARD, "[Card-1GB"])
    def test_a_table_twice_or_no_toml(self, second: str) -> None:
        with pytest.raises(CatalogueError) as caught:
            read_accelerators(CARD + second)
        assert caught.value.field == "accelerators.toml"

    def test_two_cards_must_not_be_spelt_alike(self) -> None:
        twin = CARD.replace("Card-1GB", "Card-2GB").replace('"Card"', '"Twin"')
        assert len(read_accelerators(CARD + twin)) == 2
        with pytest.raises(CatalogueError) as caught:
            read_accelerators(CARD + twin.replace('"Twin"', '"card 1gb"'))
        assert caught.value.field == "accelerators.toml:Card-2GB"


class TestAcceleratorFromFacts:
    @pytest.mark.parametrize(
        ("memory_gib", "vendor", "name", "capability", "interconnect"),
        [
            (79.19, "nvidia", "NVIDIA H100 80GB HBM3", (9, 0), Interconnect.NVLINK),
            (79.19, "nvidia", "H100", (9, 0), Interconnect.NVLINK),
            (79.1, "nvidia", "NVIDIA H100 PCIe", (9, 0), Interconnect.PCIE),
            (44.4, "nvidia", "L40S 46GB", (8, 9), Interconnect.PCIE),
            (44.4, "nvidia", "L40S 48GB", (8, 9), Interconnect.PCIE),
            (95.01, "nvidia", "RTX PRO 6000 Blackwell Server 96GB", (12, 0), Interconnect.PCIE),
            (94.97, "nvidia", "RTX PRO 6000 Blackwell 95GB", (12, 0), Interconnect.PCIE),
            (31.36, "nvidia", "RTX 5090 32607MiB", (12, 0), Interconnect.PCIE),
            (39.39, "nvidia", "A100-SXM4-40GB", (8, 0), Interconnect.NVLINK),
            (79.3, "nvidia", "NVIDIA A100 80GB PCIe", (8, 0), Interconnect.PCIE),
            (139.81, "nvidia", "GH200 120GB", (9, 0), Interconnect.NONE),
            (14.56, None, "14.56 GiB card", (7, 5), Interconnect.PCIE),
            (184.31, None, "184.31 GiB card", (10, 0), Interconnect.NVLINK),
            (79.18, None, "79.18 GiB card", (9, 0), Interconnect.NVLINK),
            (61.27, "huawei", "61.27 GiB card", None, Interconnect.HCCS),
            (30.48, "huawei", "Ascend vNPU 32GB", None, Interconnect.HCCS),
            (31.86, "amd", "AMD Radeon AI PRO R9700 32GB", None, Interconnect.PCIE),
            (191.69, "amd", "AMD Instinct MI300X OAM", None, Interconnect.XGMI),
            (23.6, "nvidia", None, (8, 6), Interconnect.PCIE),
        ],
    )
    def test_the_kind_comes_from_the_name_and_the_memory_is_kept(
        self,
        memory_gib: float,
        vendor: str | None,
        name: str | None,
        capability: tuple[int, int] | None,
        interconnect: Interconnect,
    ) -> None:
        card = catalogue.accelerator_from_facts(memory_gib, vendor, name)
        assert (card.memory_gib, card.memory_grade) == (memory_gib, Grade.MEASURED)
        assert (card.compute_capability, card.interconnect) == (capability, interconnect)
        assert card.name == name or name is None

    @pytest.mark.parametrize(
        ("name", "memory_gib", "is_integrated"),
        [
            ("A100", 79.15, False),
            ("DGX Spark GB10", 121.63, True),
            ("DGX Spark", 121.63, True),
            ("Jetson AGX Thor", 122.80, True),
            ("NVIDIA H200", 139.81, False),
            # 24 GiB less 0.40 and 0.18 %
            ("24GB card", 23.56, False),
        ],
    )
    def test_a_missing_memory_is_assumed(self, name: str, memory_gib: float, is_integrated: bool) -> None:
        card = catalogue.accelerator_from_facts(None, None, name)
        assert (card.memory_gib, card.memory_grade) == (memory_gib, Grade.ASSUMED)
        assert card.is_integrated is is_integrated

    def test_a_board_with_twice_the_memory_is_another_board(self) -> None:
        assert catalogue.accelerator_from_facts(47.4, "nvidia", "RTX 4090").name == "RTX 4090"
        assert catalogue.accelerator_from_facts(47.4, "nvidia", "RTX 4090").compute_capability == (8, 9)

    @pytest.mark.parametrize(
        ("memory_gib", "vendor", "expected"),
        [(17.3, "nvidia", Vendor.NVIDIA), (17.3, None, Vendor.NVIDIA), (40.0, "cambricon", Vendor.OTHER)],
    )
    def test_what_nothing_matches_is_of_no_known_kind(
        self, memory_gib: float, vendor: str | None, expected: Vendor
    ) -> None:
        card = catalogue.accelerator_from_facts(memory_gib, vendor, "Unheard")
        assert (card.vendor, card.compute_capability, card.memory_gib) == (expected, None, memory_gib)

    @pytest.mark.parametrize("name", ["Moore Threads GPU", "RTX 9999", "GPU", "0GB card"])
    def test_without_memory_and_without_a_known_name_there_is_no_card(self, name: str | None) -> None:
        with pytest.raises(CatalogueError) as caught:
            catalogue.accelerator_from_facts(None, "nvidia", name)
        assert caught.value.code == "unknown-accelerator"

    @pytest.mark.parametrize("name", [None, "", " "])
    def test_nothing_at_all_has_words_of_its_own(self, name: str | None) -> None:
        with pytest.raises(CatalogueError) as caught:
            catalogue.accelerator_from_facts(None, "nvidia", name)
        assert caught.value.code == "accelerator-not-described"
        for language in Language:
            said = words(language).error(caught.value) + words(language).next_step(caught.value)
            assert "{" not in said
            assert "None" not in said

    @pytest.mark.parametrize("find", [catalogue.find_accelerator, catalogue.find_model])
    def test_what_to_do_where_nothing_is_near_is_said_in_the_language(
        self, find: Callable[[str], object]
    ) -> None:
        with pytest.raises(CatalogueError) as caught:
            find("?" * 40)
        step = words(Language.CHINESE).next_step(caught.value)
        assert not re.search("catalogue|bundled", step)


ENTRY = """
id = "owner/model"
source = "config.json of owner/model"
checked = 2026-11-21
nulls = ["sliding_window", "text_config.rope_scaling"]

[config]
architectures = ["LlamaForCausalLM"]
text_config = {hidden_size = 64}
"""


class TestModels:
    def test_every_entry_loads_strictly_under_its_own_name(self) -> None:
        entries = catalogue.load_models()
        assert len(entries) >= 300
        assert [entry.id for entry in entries] == list(catalogue.model_ids())
        assert len({entry.id.lower() for entry in entries}) == len(entries)
        for entry in entries:
            assert re.fullmatch(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", entry.id), entry.id
            assert len(entry.source) > 20, entry.id
            assert datetime.date(2026, 1, 1) <= datetime.date.fromisoformat(entry.checked), entry.id
            assert entry.config.architectures, entry.id
            assert not UNUSED_KEYS & entry.config.raw.keys(), entry.id

    @pytest.mark.parametrize("model", catalogue.model_ids())
    def test_a_reader_reads_it_and_the_engine_takes_it(self, model: str) -> None:
        entry = catalogue.find_model(model)
        scenario = Scenario(
            model=entry.id,
            config=entry.config,
            checkpoint=entry.checkpoint,
            measured=Measured(available_kv_gib=10_000.0),
        )
        planned = plan(scenario)
        assert planned.parameter_bytes_per_rank > 0
        assert planned.cache is not None
        stored = entry.checkpoint.total_size
        if stored is not None and not planned.architecture.uncounted:
            # drafts and a second copy of a tied embedding are stored, and not always loaded
            assert 0.9 * stored <= planned.parameter_bytes_per_rank <= 1.02 * stored

    @pytest.mark.parametrize(
        ("model", "parameter_bytes"),
        [
            # the safetensors totals that the Hub publishes, 2 bytes each
            ("Qwen/Qwen3-32B", 2 * 32_762_123_264),
            ("meta-llama/Llama-3.1-8B-Instruct", 2 * 8_030_261_248),
            ("meta-llama/Llama-3.3-70B-Instruct", 2 * 70_553_706_496),
            ("mistralai/Mistral-Small-24B-Instruct-2501", 2 * 23_572_403_200),
            ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 2 * 1_777_088_000),
            ("Qwen/Qwen2.5-VL-72B-Instruct", 2 * 73_410_777_344),
            ("Qwen/Qwen2-57B-A14B-Instruct", 2 * 57_408_658_944),
            ("tiiuae/Falcon3-7B-Instruct", 2 * 7_455_550_464),
        ],
    )
    def test_published_parameters(self, model: str, parameter_bytes: int) -> None:
        entry = catalogue.find_model(model)
        planned = plan(
            Scenario(model=model, config=entry.config, measured=Measured(available_kv_gib=10_000.0))
        )
        assert planned.parameter_bytes_per_rank == parameter_bytes

    def test_what_ships_sentence_transformers_files(self) -> None:
        ships = {entry.id for entry in catalogue.load_models() if entry.checkpoint.sentence_transformers}
        assert ships == {
            "Alibaba-NLP/gte-Qwen2-7B-instruct",
            "Qwen/Qwen3-Embedding-8B",
            "intfloat/e5-mistral-7b-instruct",
        }
        assert all("modules.json" in catalogue.find_model(model).source for model in ships)

    def test_any_case_is_found(self) -> None:
        assert catalogue.find_model(" qwen/qwen3-32b ").id == "Qwen/Qwen3-32B"

    def test_an_unknown_one_has_near_matches(self) -> None:
        with pytest.raises(CatalogueError) as caught:
            catalogue.find_model("Qwen/Qwen3-32")
        assert caught.value.code == "unknown-model"
        assert "Qwen/Qwen3-32B" in caught.value.params["near"]

    @pytest.mark.parametrize("text", ["", "../../etc/passwd", "x" * 100_000, "\x00", "Qwen__Qwen3-32B"])
    def test_any_text_is_refused_by_code(self, text: str) -> None:
        with pytest.raises(CatalogueError) as caught:
            catalogue.find_model(text)
        assert caught.value.code == "unknown-model"

    def test_one_look_up_reads_one_file(self) -> None:
        model_ids.cache_clear()
        _load.cache_clear()
        catalogue.find_model("meta-llama/Llama-3.1-8B-Instruct")
        assert _load.cache_info().currsize == 1


class TestReadEntry:
    def test_nulls_are_put_back(self) -> None:
        entry = read_entry("owner__model.toml", ENTRY)
        assert entry.config.raw == {
            "architectures": ["LlamaForCausalLM"],
            "sliding_window": None,
            "text_config": {"hidden_size": 64, "rope_scaling": None},
        }

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('id = "owner/model"\n', ""),
            ('id = "owner/model"', "id = 3"),
            ('id = "owner/model"', 'id = "owner/other"'),
            ('id = "owner/model"', 'id = "owner"'),
            ('source = "config.json of owner/model"', 'source = ""'),
            ("checked = 2026-11-21", 'checked = "yesterday"'),
            ("checked = 2026-11-21", "checked = 2026-11-21\nlicence = 3"),
            ("checked = 2026-11-21", "checked = 2026-11-21\ntotal_size = 0"),
            ("checked = 2026-11-21", "checked = 2026-11-21\ntotal_size = true"),
            ("checked = 2026-11-21", "checked = 2026-11-21\ntotal_parameters = 1.5"),
            ("checked = 2026-11-21", "checked = 2026-11-21\nhf_quant_config = 3"),
            ('["sliding_window", ', '["architectures", '),
            ('["sliding_window", ', '["architectures.x", '),
            ('["sliding_window", ', "[3, "),
            ("[config]", "[configuration]"),
            ("[config]", "[config"),
        ],
    )
    def test_a_wrong_entry_is_named_by_its_file(self, old: str, new: str) -> None:
        assert old in ENTRY
        with pytest.raises(CatalogueError) as caught:
            read_entry("owner__model.toml", ENTRY.replace(old, new))
        assert (caught.value.code, caught.value.field) == ("invalid-catalogue-entry", "owner__model.toml")

    def test_what_is_written_reads_back_the_same(self) -> None:
        config = ModelConfig.from_mapping(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "low": None},
                "sliding_window": None,
                "layer.types": ["a", "b"],
                "tie": True,
                "size": 2**40,
                "blocks": [{"no_op": False, "n": 4}, {"no_op": True}],
                "text": 'with "quotes", \\ and é',
                "bos_token_id": 1,
            },
            {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        )
        checkpoint = Checkpoint(total_size=10, total_parameters=5, sentence_transformers=True)
        text = entry_text("owner/model", config, checkpoint, "a source", datetime.date(2026, 11, 21))
        entry = read_entry("owner__model.toml", text)
        kept = {key: value for key, value in config.raw.items() if key != "bos_token_id"}
        assert entry.config == ModelConfig.from_mapping(kept, config.hf_quant_config)
        assert (entry.checkpoint, entry.source, entry.checked) == (checkpoint, "a source", "2026-11-21")


class TestNamePatterns:
    NAMES = st.lists(
        st.lists(
            st.sampled_from(
                ["model", "layers", "mlp", "experts", "0", "1", "2", "3", "10", "007", "up-proj", "re:.*"]
            ),
            min_size=1,
            max_size=5,
        ).map(".".join),
        unique=True,
        max_size=40,
    )

    @given(NAMES)
    def test_patterns_stand_for_exactly_the_names(self, names: list[str]) -> None:
        patterns = list(patterns_of(names))
        assert sorted(name for pattern in patterns for name in names_of(pattern)) == sorted(names)
        assert len(patterns) <= len(names)

    def test_experts_of_a_few_layers_are_one_pattern(self) -> None:
        names = [f"layers.{layer}.experts.{expert}.up" for layer in (1, 3, 4, 5) for expert in range(128)]
        assert list(patterns_of(names)) == ["layers.<1,3-5>.experts.<0-127>.up"]

    def test_a_table_is_folded_by_its_values(self) -> None:
        table = {f"layers.{layer}.q": {"algo": "FP8" if layer < 4 else "NVFP4"} for layer in range(8)}
        folded = fold({"quantized_layers": table})
        assert folded == {
            "quantized_layers": {"layers.<0-3>.q": {"algo": "FP8"}, "layers.<4-7>.q": {"algo": "NVFP4"}}
        }
        assert unfold(folded) == {"quantized_layers": table}

    def test_short_lists_and_repeated_names_stay(self) -> None:
        for names in (
            ["layers.0.q", "layers.1.q"],
            ["layers.0.q"] * 20,
            [f"layers.<{n}>.q" for n in range(20)],
        ):
            assert fold({"ignore": names}) == {"ignore": names}

    def test_other_angle_brackets_are_no_pattern(self) -> None:
        assert list(names_of("re:(?<!vision)<x>.*<1->")) == ["re:(?<!vision)<x>.*<1->"]

    @pytest.mark.parametrize("pattern", ["<0-999999999999>", "<0-9999>.<0-9999>"])
    def test_a_pattern_has_its_limit(self, pattern: str) -> None:
        with pytest.raises(ValueError, match=r"names|too long"):
            list(names_of(pattern))


class TestNemotron3:
    """Files that mix formats: the layers of the model, with the draft layers that its checkpoint holds in bfloat16."""

    @staticmethod
    def loaded_gib(model: str, engine_version: str) -> float:
        scenario = Scenario(
            model=model,
            config=catalogue.find_model(model).config,
            engine_version=engine_version,
            max_model_len=131072,
            speculative_config=SpeculativeConfig(method="mtp", num_speculative_tokens=3),
            measured=Measured(available_kv_gib=40.0),
        )
        return gib(plan(scenario).weights.total)

    def test_super_nvfp4_loads_what_the_engine_prints(self) -> None:
        """75.03 GiB: vLLM 0.19.2 on one GB10, github.com/djangodevreng/dgx-spark-benchmarks at a73b72d47e0c."""
        loaded = self.loaded_gib("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", "0.19.1")
        assert loaded == pytest.approx(75.03, rel=0.005)

    def test_ultra_nvfp4_loads_what_its_files_hold(self) -> None:
        """328.13 GiB: model_catalog.yaml of github.com/kaito-project/kaito at 056b8280b1a8."""
        loaded = self.loaded_gib("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4", "0.32.0")
        assert loaded == pytest.approx(328.13, rel=0.005)

    def test_super_fp8_keeps_attention_and_latent_projections_in_sixteen_bits(self) -> None:
        """One byte more for each of their weights than if only lm_head and the draft layers were left alone."""
        entry = catalogue.find_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8").config
        bare = ModelConfig.from_mapping(
            entry.raw, {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", "mtp*"]}}
        )
        measured = Measured(available_kv_gib=40.0)
        kept, all_fp8 = (
            plan(Scenario(model="", config=config, measured=measured)).weights.parameters
            for config in (entry, bare)
        )
        weights = 8 * 4096 * (2 * 32 * 128 + 2 * 2 * 128) + 40 * 2 * 4096 * 1024
        assert 0 <= weights - (kept - all_fp8) < 0.001 * weights


def test_markup_does_not_become_part_of_a_name() -> None:
    card = catalogue.accelerator_from_facts(64.0, "other", "DCU [x](http://a.b) **K100** <b>:red[64GB]")
    assert card.name == "DCU x (http //a.b) K100 b red 64GB"


@pytest.mark.parametrize("card", ["H200-MIG-35GB", "H200-MIG-71GB", "B200-MIG-90GB"])
def test_a_slice_has_the_defaults_of_the_smallest_cards(card: str) -> None:
    """github.com/vllm-project/vllm/issues/55381: 2,048 and 256, where the card itself has 8,192 and 1,024."""
    for accelerator, batch in ((card, (2048, 256)), ("H200-141GB", (8192, 1024))):
        asked = {
            "model": "Qwen/Qwen3-8B",
            "accelerator": accelerator,
            "engine_version": "0.33.0",
            "max_model_len": 8192,
        }
        found = plan(scenario_from_request(asked)).resolved
        assert (found.max_num_batched_tokens, found.max_num_seqs) == batch


def test_a_limit_of_hami_is_a_card_of_its_own() -> None:
    """github.com/vllm-project/vllm/issues/40937: 23.56 GiB are all that torch sees, of which utilization is a share."""
    card = {
        "memory_gib": 23.56,
        "vendor": "nvidia",
        "name": "NVIDIA GeForce RTX 3090",
        "compute_capability": "8.6",
    }
    asked = {
        "model": "Qwen/Qwen3-8B",
        "accelerator": card,
        "gpu_memory_utilization": 0.9,
        "max_model_len": 8192,
    }
    memory = plan(scenario_from_request(asked)).memory
    assert memory is not None
    assert memory.budget.value == pytest.approx(0.9 * 23.56 * GIB, rel=1e-9)
