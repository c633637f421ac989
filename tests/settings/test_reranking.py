"""The settings of single systems of the re-ranking pipeline, and settings that a re-ranker cannot have."""

import pytest
from pydantic import ValidationError

from gnn_encoder.settings.outcome import Evaluate, Rerank
from gnn_encoder.settings.pipeline import Settings, ranking_calls
from gnn_encoder.settings.reranking import system_names


def test_hits_are_scored_by_default() -> None:
    assert Rerank(system="A").depth == 100
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Rerank(system="A", depth=0)
    for depth, asked in ((0, False), (7, True)):
        call = ranking_calls(Evaluate(rerank_depth=depth), Settings().train_dual_encoder)["rerank"]
        assert call.asked == asked and isinstance(call.settings, Rerank) and call.settings.depth == max(1, depth)


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
