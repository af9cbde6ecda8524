"""The words of the page."""

from kvcore.base.words import Language, words
from kvcore.texts import GLOSSARY


def test_each_term_is_there_once_and_in_order() -> None:
    names = [term.name.lower() for term in GLOSSARY.values()]
    assert names == sorted(set(names))


def test_terms_of_the_pages_are_explained() -> None:
    explained = " ".join(term.name for term in GLOSSARY.values())
    said = (
        "KV cache|Weights|Activations|CUDA graphs|Budget|Block|Requests at once|Context length|TP|PP|DP|EP|MLA|GQA|"
        "TTFT|TPOT|TPS|Preemption|OOM"
    )
    for word in said.split("|"):
        assert word in explained


def test_terms_of_the_documents_are_explained() -> None:
    names = {term.name for term in GLOSSARY.values()}
    assert names >= {
        "PagedAttention", "Continuous batching", "Speculative decoding", "N-gram", "AWQ", "GPTQ", "Position embedding",
        "Precision", "Head size", "KV heads", "Layers", "Framework", "Profile run", "Multi-head attention (MHA)",
        "Grouped-query attention (GQA)", "Multi-query attention (MQA)",
    }  # fmt: skip
    assert "FP32 4, FP16 and BF16 2, FP8 and INT8 1, INT4 half a byte" in GLOSSARY["precision"].meaning


def test_chinese_terms_are_those_of_the_page() -> None:
    t = words(Language.CHINESE)
    spoken = {t(term.name) for term in GLOSSARY.values()}
    assert {
        "权重",
        "激活",
        "KV 缓存",
        "上下文长度",
        "并发请求数",
        "张量并行（TP）",
        "首 token 延迟（TTFT）",
    } <= spoken
