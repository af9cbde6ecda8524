"""Rows of models that embed, rank or label: what the table refuses."""

import pytest

from kvcore.base.errors import CatalogueError
from kvcore.model.families.embedders import load_rows

ROW = '[[rows]]\nnames = ["MyModel"]\nread = "bert"\n'


class TestRows:
    def test_a_row_reads_under_each_of_its_names(self):
        assert set(load_rows(ROW.replace('"MyModel"', '"MyModel", "my"'))) == {"MyModel", "my"}

    @pytest.mark.parametrize(
        ("line", "named"),
        [
            ("heads = []", "unknown field `heads`"),
            ('head = [{ name = "a", to = "label" }]', "'label' is none of hidden, half, labels"),
            ('head = [{ name = "a", split = "rows" }]', "rows[0] head[0] split: Invalid enum value 'rows'"),
            ('head = [{ name = "a", bias = 1 }]', "rows[0] head"),
        ],
    )
    def test_an_unknown_word_stops_it(self, line, named):
        with pytest.raises(CatalogueError) as caught:
            load_rows(ROW + line)
        assert caught.value.code == "invalid-catalogue-entry"
        assert named in str(caught.value)

    def test_an_unknown_decoder_stops_it(self):
        with pytest.raises(CatalogueError, match="'berd' is no decoder and none of bert"):
            load_rows(ROW.replace("bert", "berd"))

    def test_a_name_twice_stops_it(self):
        with pytest.raises(CatalogueError, match="MyModel"):
            load_rows(ROW + ROW)
