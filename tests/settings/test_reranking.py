"""The settings of single systems of the re-ranking pipeline, and settings that a re-ranker cannot have."""

import pytest

from gnn_encoder.settings.reranking import system_names


@pytest.mark.parametrize(
    ("named", "systems"),
    [
        (["ss_bert_d", "ss_bert_h"], ["ss_bert_d", "ss_bert_h"]),
        (["ss_bert_d"], ["ss_bert_h", "ss_bert_d"]),
        (["ss_bert_h", "colbert", "ss_bert_d"], ["ss_bert_h", "colbert", "ss_bert_d"]),
        (["dmn", "colbert", "dmn"], ["colbert", "dmn"]),
    ],
)
def test_the_last_named_system_is_the_last(named: list[str], systems: list[str]) -> None:
    assert system_names(named) == systems
