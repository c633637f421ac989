"""Settings that the data or the models do not allow are refused before any step."""

from pathlib import Path
from typing import Any

import pytest
from beir_folder import write_beir

from gnn_encoder.engines import provenance
from gnn_encoder.errors import UserError
from gnn_encoder.flow.arguments import StepArguments
from gnn_encoder.flow.graph import Given
from gnn_encoder.pipelines.rerank import rerank
from gnn_encoder.pipelines.train import train
from gnn_encoder.pipelines.update import update
from gnn_encoder.settings.outcome import Evaluate
from gnn_encoder.settings.presets import parse_settings


def test_a_backbone_that_is_not_there_is_refused_before_any_step() -> None:
    settings = parse_settings({"shared": {"backbone": "/no/such/model"}, "ingest": {"dataset": "python-docs"}})
    with pytest.raises(UserError, match="/no/such/model"):
        provenance.graph_arguments(train(settings))


def test_measures_of_documents_are_refused_before_any_step_where_the_data_have_none(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir(tmp_path / "data")
    tree = {"ingest": {"dataset": str(tmp_path / "data")}, "shared": {"backbone": str(tiny_backbone)}}
    tree["evaluate"] = {"measures": "RR@10 PRES(doc)@100 MAP(D)", "untrained_backbone": ""}
    settings = parse_settings(tree)
    for graph in (train(settings), rerank(settings, ["colbert"])):
        with pytest.raises(UserError, match=r"has PRES\(doc\)@100, MAP\(D\), but nothing in .*/data says"):
            provenance.graph_arguments(graph)
    plain = settings.model_copy(update={"evaluate": Evaluate(untrained_backbone="")})
    for names in (["lim"], ["colbert", "qsf"]):
        with pytest.raises(UserError, match=r"in their documents|sections of passages"):
            provenance.graph_arguments(rerank(plain, names))
    provenance.graph_arguments(rerank(plain, ["colbert"]))
    models = {name: Given(name) for name in ("dual_encoder", "cross_encoder", "gnn_encoder")}
    provenance.graph_arguments(update(settings, models))  # it evaluates nothing
    gate = {"evaluate": {"untrained_backbone": ""}, "promote": {"floors": {"MAP(D)": 0.1}}}
    with pytest.raises(UserError, match=r"promote\.floors has MAP\(D\), but nothing"):
        provenance.graph_arguments(train(parse_settings({**tree, **gate})))
    monkeypatch.setattr("gnn_encoder.data.has_documents", lambda settings: True)
    assert "evaluate" in provenance.graph_arguments(train(settings))


def test_negatives_from_documents_are_refused_before_any_step_where_the_data_have_none(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    write_beir(tmp_path / "data")

    def arguments(**settings: Any) -> dict[str, StepArguments]:
        tree = {"ingest": {"dataset": str(tmp_path / "data")}, "shared": {"backbone": str(tiny_backbone)}}
        tree |= {"evaluate": {"untrained_backbone": ""}, "train_reranker": settings}
        return provenance.graph_arguments(rerank(parse_settings(tree), ["colbert"]))

    with pytest.raises(UserError, match=r"document_negatives = 0.4 draws from documents, but nothing in .*: set it to"):
        arguments(negatives_from="corpus")
    assert "evaluate" in arguments(negatives_from="corpus", document_negatives=0.0)
    assert "evaluate" in arguments(document_negatives=0.4)
