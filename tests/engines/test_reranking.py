"""What a re-ranking run leaves in `latest/`. With training: tests/test_rerank_pipeline.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import fill_bundle

from gnn_encoder.artifacts import Bundle, Dataset, drafting
from gnn_encoder.artifacts.added_labels import AddedLabel, AddedLabels
from gnn_encoder.engines import latest, reranking
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.flow.graph import Graph
from gnn_encoder.labels.versions import Versions
from gnn_encoder.models.dual_encoder import TextEncoder
from gnn_encoder.settings.presets import parse_settings

BEFORE, MEANWHILE = AddedLabel("q1", "where is the river", "p7"), AddedLabel("q2", "who sings", "p9")


@pytest.mark.parametrize("source", ["latest", "another bundle"])
def test_labels_added_during_a_run_are_kept(
    source: str, tiny_dataset: Dataset, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bundle(name: str) -> Path:
        with drafting(tmp_path / name, "bundle") as draft:
            encoder = TextEncoder.from_backbone(str(tiny_backbone), max_length=24)
            fill_bundle(draft, np.ones((100, encoder.width), np.float32), tiny_dataset, encoder.save)
        return draft.target

    def added(label: AddedLabel) -> None:
        with Versions.of(link) as versions:
            now = Bundle.read(link)
            versions.write(now, AddedLabels([*latest.added_labels(now), label]))

    def run(*_: Any) -> Outcome:
        added(MEANWHILE)
        return Outcome(outputs={"bundle": bundle("re-ranked")})

    link, kept = latest.linked(tmp_path, "bundle", bundle("first stage")), list[Sequence[AddedLabel]]()
    added(BEFORE)
    monkeypatch.setattr(reranking, "run_graph", run)
    monkeypatch.setattr(latest, "_keep_labels", lambda of, labels: kept.append(labels))
    first = link.parent if source == "latest" else bundle("other")
    settings = parse_settings({}, [f"first_stage.source={first}"])
    outcome = reranking.rerank("rerank", "tiny", settings, Graph("rerank"), tmp_path, lambda events: None)
    assert outcome.outputs["bundle"] == link and link.resolve() == tmp_path / "re-ranked"
    assert kept == ([[BEFORE, MEANWHILE]] if source == "latest" else [])
