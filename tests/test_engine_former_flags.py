"""What became of the flags of older guides."""

import pytest
from packaging.version import Version

from kvcore.engine.former_flags import former_flag, former_flags, read_former_flags
from kvcore.errors import CatalogueError

ROW = '[[flags]]\nflag = "--x"\nseen = "0.6.6"\ngone = "0.11.0"\nreplaced_by = ""\nsource = "s"\n'


def test_swap_space_is_in_0_11_and_not_in_0_19() -> None:
    former = former_flag("--swap-space")
    assert former is not None
    assert (former.seen, former.gone) == (Version("0.11.0"), Version("0.19.0"))


def test_a_flag_that_never_was() -> None:
    former = former_flag("--speculative-mode")
    assert former is not None
    assert former.seen is None
    assert former.replaced_by == "--speculative-config"


def test_a_flag_that_is_still_there() -> None:
    assert former_flag("--max-model-len") is None


def test_none_is_gone_before_it_was_seen() -> None:
    assert all(former.seen is None or former.seen < former.gone for former in former_flags())


@pytest.mark.parametrize(
    "text", [ROW + "more = 1\n", ROW.replace("0.6.6", "x"), "flags = 1", "[[flags]]\n", "="]
)
def test_any_other_shape_is_refused(text: str) -> None:
    with pytest.raises(CatalogueError):
        read_former_flags(text)
