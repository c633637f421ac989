"""The commands below a report, which repeat its run."""

import shlex
from pathlib import Path

import pytest
from report_inputs import render

from gnn_encoder.artifacts import Report, drafting
from gnn_encoder.artifacts.history import Record
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.report.cost import reranking_costs
from gnn_encoder.report.page import commands
from gnn_encoder.report.systems import rerankers
from gnn_encoder.settings import outcome
from gnn_encoder.settings.presets import load_settings, preset_names, yaml_of


@pytest.mark.parametrize("preset", preset_names())
def test_settings_that_differ_repeat_the_run_also_of_steps_that_did_not_run(preset: str, tmp_path: Path) -> None:
    wanted = [
        "train_gnn.heads=3", "index_bm25.k1=0.9", "encode.query_prompt='query: '", "encode.passage_prompt='3e-5'",
        "bm25_retrieve.eval_depth=2000", "first_stage.eval_depth=1000", "ingest.packages=[\"a\", \"b\"]",
        'choose_graph.variants={"one layer": {"train_gnn.layers": 1}}', "fuse_parts.kinds=[]", "promote.floors={}",
        "evaluate.measures=[\"nDCG@10\", \"RR@10\"]", "train_dual_encoder.matryoshka=[64, 32]", "ingest.dataset=data",
    ]  # fmt: skip
    settings = load_settings(preset, wanted)
    graph = ladder(settings, "labels")
    (page,) = (node.settings for node in graph.of("report") if node.label == "labels")
    assert isinstance(page, outcome.Report) and not graph.of("fuse_parts") and not graph.of("train_gnn")
    with drafting(tmp_path / "pipeline" / "20260101-000000" / "report-labels" / "report", "report") as draft:
        Report.write(draft, metrics={}, plots={}, page="", changed=yaml_of(page.changed))
    ingested = {"ingest": Record({"dataset": "data"})}
    printed = commands(draft.target, ingested, "labels")["Repeat the run"]
    program, command, *words = shlex.split(printed)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert load_settings(options["--preset"], ["ingest.dataset=data"]) == settings != load_settings(preset)
    assert (program, command, options["--until"], options["--dataset"]) == ("gnn-encoder", "run", "labels", "data")
    assert options["--root"] == str(tmp_path)
    of_preset = commands(draft.target, ingested, "")
    assert "--until" not in of_preset["Repeat the run"]
    assert of_preset["Search"].endswith(f"--bundle {tmp_path}/latest/bundle")
    assert list(commands(draft.target, ingested, "", (), True))[1].startswith("Explain") and len(of_preset) == 3
    listed = render(changed=page.changed)
    assert "train_gnn.heads" in listed and "bm25_retrieve.train_depth" not in listed.partition("All settings")[0]


def test_a_comparison_of_rerankers_has_its_costs_and_the_command_that_repeats_it() -> None:
    def steps(rate: float) -> dict[str, Record]:
        took = {"queries": 2, "pairs": 100, "pairs_per_second": rate}
        return {"rerank: SS-BERT(h)": Record({"system": "SS-BERT(h)", "depth": 50}, metrics=took)}

    took = {"queries": 4, "pairs": 40, "pairs_per_second": 20.0}
    weighed = steps(200.0) | {"evaluate_passages: SS-BERT(d)": Record(metrics=took)}
    assert reranking_costs(steps(200.0)) == {"SS-BERT(h)": {"ms": 250.0}} and reranking_costs(steps(0.0)) == {}
    assert reranking_costs(weighed) == {"SS-BERT(h)": {"ms": 250.0}, "SS-BERT(d)": {"ms": 750.0}}
    colbert = Record({"system": "ColBERT", "depth": 1000}, metrics={**took, "pairs": 120})  # 30 hits of each query
    sections = {"rerank: ColBERT": colbert, "propagate_sections: QSF sectionPropagateAVG": Record()}
    assert reranking_costs(sections) == {name: {"ms": 1500.0} for name in ("ColBERT", "QSF sectionPropagateAVG")}
    metrics = {"headline_split": "test", "baseline": "BM25", "candidate": "ColBERT"}
    metrics |= {"results": {"test": {"BM25": {}, "ColBERT": {}, "SS-BERT(h)": {}}}}
    assert rerankers(metrics) == ["ss_bert_h", "colbert"]
    assert rerankers({**metrics, "baseline": "another"}) == []
    printed = commands(Path("report"), {"ingest": Record({"dataset": "data"})}, "", rerankers(metrics))
    command = "gnn-encoder rerank --systems ss_bert_h,colbert --preset settings.yaml --dataset data --root ROOT"
    assert printed == {"Repeat the run": command}
