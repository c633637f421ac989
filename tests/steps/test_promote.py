"""The gate before a real MLflow registry, over bundles that are really searched."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
import torch
from gate import CALM, Gate
from gate_inputs import BASELINE, CANDIDATE, write_evaluation, write_run
from manifests import write_manifest
from mlflow_store import write_store
from registered import register

from gnn_encoder.artifacts import Bundle, Dataset, Run, drafting, read_manifest
from gnn_encoder.artifacts.bundle import Reranking, Serving
from gnn_encoder.artifacts.folder import README
from gnn_encoder.artifacts.report import Decision
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.flow.arguments import CODE, ORIGIN, PLAN, StepArguments
from gnn_encoder.models.cross_encoder import CrossEncoder
from gnn_encoder.promotion.registry import CHAMPION, DATASET, GENERATED, HUMAN, PREVIOUS, QUERIES
from gnn_encoder.retrieval.scorers import save_scorer
from gnn_encoder.settings.outcome import Rerank
from gnn_encoder.settings.reranking import BundleReranker
from gnn_encoder.settings.rungs import LABELS, TRAINING, WORDS
from gnn_encoder.steps.bundle_reranker import bundle_reranker
from gnn_encoder.steps.promote import on_generated, promote


@pytest.fixture
def gate(tmp_path: Path, tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate_of = Gate(tmp_path, tiny_dataset, tiny_backbone, write_store(tmp_path / "mlflow.db"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gate_of.uri)
    monkeypatch.chdir(tmp_path)
    yield gate_of


@pytest.mark.slow
def test_without_tracking_it_decides_and_registers_nothing(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    facts = gate.decided("one", 10)
    assert facts["decision"] == "promote"
    assert facts["version"] is None
    assert facts["bundle_digest"] == read_manifest(gate.folder / "one" / "bundle").digest
    assert "no tracking store is configured" in facts["reason"]
    headline = read_manifest(gate.folder / "one" / "decision").metrics["headline"]
    cold = "(+0.4000 on the 12 cold queries, p 0.031)"
    expected = f"promote: test MRR@10 0.5000, +0.4000 against the dual encoder {cold}; there was no champion"
    assert headline.startswith(expected)


@pytest.mark.slow
def test_the_alias_moves_only_on_promote(gate: Gate) -> None:
    assert gate.decided("first", 8)["decision"] == "promote"
    assert gate.aliases() == {CHAMPION: "1"}
    worse = gate.decided("worse", 5)
    assert (worse["decision"], worse["version"], worse["champion_before"]) == ("keep", "2", "1")
    assert "-0.1500 (p " in worse["reason"] and "against version 1, the champion" in worse["reason"]
    luck = gate.decided("luck", 9)
    assert luck["decision"] == "keep" and "p of at most 0.05 is asked for" in luck["reason"]
    assert gate.aliases() == {CHAMPION: "1"}
    better = gate.decided("better", 18, steps=300)
    assert better["decision"] == "promote"
    assert gate.aliases() == {CHAMPION: "4", PREVIOUS: "1"}
    comparison = better["comparison"]
    for stratum in ("all", "old"):  # both have one corpus
        part = comparison["strata"][stratum]
        assert part["other"]["RR@10"] == 8 / 20 and part["challenger"]["RR@10"] == 18 / 20
        assert part["better"]["RR@10"] == 10 / 20 and part["worse"]["RR@10"] == 0.0
        assert part["p_values"]["RR@10"] < 0.05 and set(part["p_values"]) == set(NAMES)
    assert "new" not in comparison["strata"]
    again = gate.decided("again", 18)
    assert again["decision"] == "keep" and "this very bundle is the champion already" in again["reason"]
    longest, kept = gate.models.find("4"), gate.models.find("2")
    assert kept.card == Decision.read(gate.folder / "worse" / "decision").card
    assert longest.card.endswith("|\n…") and 4900 < len(longest.card) <= 5000
    assert (kept.tags["decision"], kept.tags["reason"]) == ("keep", worse["reason"])
    assert kept.tags["digest"] == read_manifest(gate.folder / "worse" / "bundle").digest
    assert kept.tags["bundle"] == str((gate.folder / "worse" / "bundle").resolve())


def test_a_floor_holds_a_better_bundle_back(gate: Gate) -> None:
    gate.decided("first", 8)
    settings = CALM.model_copy(update={"largest_index_ratio": 0.5})
    kept = gate.decided("better", 18, settings)
    assert kept["decision"] == "keep" and "a passage takes 1.00 times the index" in kept["reason"]


@pytest.mark.slow
def test_a_champion_that_cannot_be_read_keeps_its_place(gate: Gate) -> None:
    gate.decided("first", 5)
    bundle, copy = gate.folder / "first" / "bundle", gate.folder / "copy"
    bundle.rename(copy)
    gone = gate.decided("second", 18)
    shutil.copytree(copy, bundle)
    (bundle / "query_encoder" / "config.json").write_text("{")
    damaged = gate.decided("second", 18)
    for facts in (gone, damaged):
        assert facts["decision"] == "keep" and facts["comparison"] is None
        assert "the bundle of the champion, version 1, cannot be read (" in facts["reason"]
        assert facts["reason"].endswith("choose another champion with gnn-encoder models promote VERSION")
    assert gate.aliases() == {CHAMPION: "1"} and len(gate.models.versions()) == 3
    # The control: with the champion's bundle restored, the same one is promoted.
    shutil.rmtree(bundle)
    copy.rename(bundle)
    assert gate.decided("second", 18)["decision"] == "promote"


@pytest.mark.parametrize("root", ["minio://mlpipeline/v2/artifacts", "s3://bucket/root"])
def test_a_bundle_is_registered_where_its_artifact_lies(gate: Gate, root: str) -> None:
    """On a cluster, the path is of one pod's disk. The next pod keeps the champion that it cannot read."""
    paths = gate.inputs("one", 5)
    call = StepArguments(settings=CALM.model_dump()).model_dump_json()
    addresses = {name: f"{root}/{name}" for name in paths}
    promote(call, addresses=addresses, **paths, decision=gate.folder / "one" / "decision")
    assert gate.models.find(CHAMPION).tags["bundle"] == f"{root}/bundle"
    if not root.startswith("s3://"):
        better = gate.decided("two", 18)
        assert better["decision"] == "keep"
        assert f"version 1 is registered at {root}/bundle, and only folders and s3:// are read" in better["reason"]
        assert gate.aliases() == {CHAMPION: "1"}


@pytest.mark.slow
def test_a_store_that_cannot_be_reached_does_not_cost_the_champion_its_place(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ENDPOINT_URL": "http://127.0.0.1:9", "ACCESS_KEY_ID": "me", "MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    gate.models.promote(register(gate.models, "s3://bucket/bundle", {}))
    with pytest.raises(UserError, match="cannot be reached"):
        gate.decided("second", 18)
    assert gate.aliases() == {CHAMPION: "1"} and len(gate.models.versions()) == 1


def test_figures_on_generated_queries_replace_no_champion_of_people_s(gate: Gate) -> None:
    gate.decided("one", 4)
    kept = gate.decided("two", 18, written=("test",))
    assert kept["decision"] == "keep" and kept["reason"].startswith("test, on generated queries MRR@10")
    assert "version 1, has figures on people's queries" in kept["reason"]
    assert gate.decided("three", 18, noise=0.01)["decision"] == "promote"  # the same figures, on people's queries
    tags = {version.number: version.tags[QUERIES] for version in gate.models.versions()}
    assert tags == {"1": HUMAN, "2": GENERATED, "3": HUMAN}
    generated = next(version for version in gate.models.versions() if version.number == "2")
    assert not on_generated(GENERATED, generated) and not on_generated(HUMAN, generated)


def test_what_the_run_was_made_of_is_written_to_the_version(gate: Gate) -> None:
    origin = {"run.data": "a", "run.settings": "b", "run.code": "c"}
    call = StepArguments(settings=CALM.model_dump(), source_digests={**origin, "registry": "d"})
    gate.decided("one", 10, call.model_dump_json())
    (version,) = gate.models.versions()
    assert origin.items() <= version.tags.items()
    assert "registry" not in version.tags


def test_what_is_ranked_already_is_not_ranked_again(gate: Gate) -> None:
    """The run's own hits count for the challenger; the champion's are kept for the next decision on these queries."""
    call = StepArguments(settings=CALM.model_dump(), source_digests={CODE: "this"}).model_dump_json()
    gate.decided("first", 8, call)
    kept = gate.folder / "gnn-encoder-runs" / "checkpoints"
    assert not list(kept.glob("ranked-*")), "without a champion nothing is ranked"
    assert gate.decided("worse", 5, call)["comparison"]["strata"]["all"]["challenger"]["RR@10"] == 5 / 20
    labels = gate.dataset.split_qrels("test")
    sixth, of_sixth = labels.query[5:6], labels.passage[5]
    (of_champion,) = (path for path in kept.glob("ranked-*") if Run.read(path).hits(sixth, 1)[0, 0] == of_sixth)
    run = write_run(gate.folder / "run", CANDIDATE, gate.dataset, 16)
    inputs = gate.inputs("run of the evaluation", 5, runs=[run])
    promote(call, decision=gate.folder / "decision", runs=[run], **inputs)
    of_both = Decision.read(gate.folder / "decision").facts["comparison"]["strata"]["all"]
    assert (of_both["challenger"]["RR@10"], of_both["other"]["RR@10"]) == (16 / 20 / 2, 8 / 20)
    # The control: with other kept hits, the champion has their figure; with other code, it ranks again.
    write_run(of_champion, CANDIDATE, gate.dataset, 2)
    for code, expected in (("other", 8 / 20), ("this", 2 / 20 / 2)):
        call = StepArguments(settings=CALM.model_dump(), source_digests={CODE: code}).model_dump_json()
        assert gate.decided("again", 6, call)["comparison"]["strata"]["all"]["other"]["RR@10"] == expected
    with pytest.raises(UserError, match="evaluation was not made from"):
        promote(CALM, decision=gate.folder / "strange", runs=[of_champion], **inputs)


def test_a_bundle_with_a_re_ranker_is_registered_and_compared_as_it_is_served(gate: Gate) -> None:
    """It is the champion with a re-ranker that puts the passages of 18 queries first, of dev as of test."""
    first = gate.decided("first", 8)["figures"]["test/RR@10"] * 20
    torch.manual_seed(0)
    with drafting(gate.folder / "scorer", "model") as draft:
        save_scorer("cross_encoder", CrossEncoder.from_backbone(str(gate.backbone), 48), draft.path)
    scorer, how = {"scorer": read_manifest(gate.folder / "scorer").digest}, Rerank(system=CANDIDATE, depth=7)
    plain = write_run(gate.folder / "plain", BASELINE, gate.dataset, 18)
    runs = [
        plain,
        write_run(gate.folder / "best", CANDIDATE, gate.dataset, 18, 1, inputs=scorer, settings=how.model_dump()),
    ]
    stage = gate.folder / "first" / "gnn_encoder"
    evaluation = write_evaluation(gate.folder / "evaluation", stage, gate.dataset, 18 / 20, runs=runs)
    paths: dict[str, Any] = {"dataset": gate.dataset.path, "evaluation": evaluation, "runs": runs}

    def bundled(name: str, reranked: Path, **settings: float) -> Serving:
        inputs = {**paths, "runs": [plain, reranked], "first_stage": stage, "reranker": gate.folder / "scorer"}
        bundle_reranker(BundleReranker(**settings), **inputs, bundle=gate.folder / name)
        return Bundle.read(gate.folder / name).serving

    served = bundled("reranked", runs[1])
    assert served.reranks and served == Serving(CANDIDATE, None, None, Reranking("GNN-encoder", 1.0, 7))
    assert "The first 7 hits are ordered by" in (gate.folder / "reranked" / README).read_text("utf-8")

    def right_on_dev(name: str) -> tuple[str, int] | None:
        known = Bundle.read(gate.folder / name).calibration
        return (known.system, int((~known.hits.wrong).sum())) if known else None

    of_reranker = right_on_dev("reranked")
    assert of_reranker and of_reranker[0] == CANDIDATE and of_reranker[1] > 0, "what it is calibrated on"
    # The control: without a significant gain on dev, it re-ranks on request, and its system is the first stage.
    on_request = bundled("on request", runs[1], significance=0.0)
    assert not on_request.reranks and (on_request.system, on_request.reranking.depth) == ("GNN-encoder", 7)
    assert right_on_dev("on request") == ("GNN-encoder", 0), "the first stage has the passages at rank 2"

    def decided(**changes: float | None) -> dict[str, Any]:
        settings = CALM.model_copy(update=changes)
        promote(settings, **paths, bundle=gate.folder / "reranked", decision=gate.folder / "decision")
        return Decision.read(gate.folder / "decision").facts

    slow = decided(largest_latency_ratio=1.0)
    both = slow["comparison"]
    assert slow["decision"] == "keep" and "times as long (" in slow["reason"], "pairs are scored, too"
    assert both["challenger"]["query_ms"] > both["champion"]["query_ms"]
    assert both["strata"]["all"]["challenger"]["RR@10"] == 18 / 20 and first == 8
    facts = decided(largest_latency_ratio=1.0, largest_latency_ms=1e6)
    assert facts["decision"] == "promote" and gate.aliases()[CHAMPION] == facts["version"]
    folder = gate.models.find(CHAMPION).bundle_folder()
    assert Bundle.read(folder).serving == served and (folder / "reranker" / "scorer.json").is_file()
    assert (
        "MRR@10" in gate.models.find(CHAMPION).tags["reason"]
        and "first 7 hits are ordered by" in gate.models.find(CHAMPION).card
    )


def test_the_first_bundle_keeps_a_limit_in_milliseconds(gate: Gate) -> None:
    """It is measured as it is served: nobody answers within a nanosecond."""
    facts = gate.decided("one", 10, CALM.model_copy(update={"largest_latency_ms": 1e-6}))
    assert facts["decision"] == "keep" and "ms as the bundle is served, where at most 1e-06 ms" in facts["reason"]
    assert gate.decided("one", 10, CALM.model_copy(update={"largest_latency_ms": 1e6}))["decision"] == "promote"


@pytest.mark.slow
def test_of_two_runs_that_end_at_once_one_wins_and_the_other_meets_the_winner(gate: Gate) -> None:
    gate.race()


@pytest.mark.slow
def test_a_process_that_stood_still_does_not_set_the_champion_back(gate: Gate) -> None:
    """It stops for as long as you like, a request short of its end. The next one is compared with it, and beats it."""
    gate.decided("old", 2)
    slow = gate.rival("slow", 10, "set_registered_model_alias", CHAMPION)
    slow.wait_for_stop()
    assert gate.aliases()[CHAMPION] == "1"
    better = gate.decided("better", 18)
    assert (better["decision"], better["comparison"]["version"], better["version"]) == ("promote", "2", "3")
    assert gate.aliases() == {CHAMPION: "3", PREVIOUS: "2"}
    slow.go_on()
    facts = slow.facts()
    assert (facts["decision"], facts["comparison"]["version"], facts["version"]) == ("promote", "1", "2")
    assert gate.aliases() == {CHAMPION: "3", PREVIOUS: "2"}


def test_the_card_tells_what_the_model_reaches_and_was_made_of(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    gate.decided("one", 10)
    card = Decision.read(gate.folder / "one" / "decision").card
    assert card.startswith(
        "# GNN-encoder\n\nRecommended: GNN-encoder (MRR@10 0.5). GNN-encoder MRR@10 0.500. Promote: "
    )
    assert "Promote: test MRR@10 0.5000" in card and "neighbours in a query–passage graph" in card
    header, _, *rows = [line for line in card.splitlines() if line.startswith("|")]
    assert header.startswith("| system | MRR@10 | nDCG@10 |")
    assert rows[0] == "| Dual encoder | " + "0.100 | " * len(NAMES)
    assert rows[1] == "| GNN-encoder | " + "0.500 (p 0.031) | " * len(NAMES)
    assert rows[-2] == "| train_1 | 12 | loss 0.5 |"
    assert "| cold | 12 | 0.100 | 0.500 | 0.031 | 3 % | 3 % |" in rows
    assert "65 % of the test labels" in card and str(gate.folder / "one" / "bundle") in card


@pytest.mark.parametrize("strange", ["bundle", "recommendation", "evaluation", "dataset"])
def test_a_bundle_that_the_evaluation_is_not_of_is_refused(gate: Gate, strange: str) -> None:
    paths = gate.inputs("a", 5)
    if strange != "dataset":
        paths[strange] = gate.inputs("b", 6)[strange]
    else:
        shutil.copytree(paths["dataset"], gate.folder / "dataset")
        manifest = gate.folder / "dataset" / "manifest.json"
        write_manifest(manifest.parent, json.loads(manifest.read_text()) | {"digest": "0" * 64})
        paths["dataset"] = gate.folder / "dataset"
    with pytest.raises(UserError, match="was not made from"):
        promote(CALM, decision=gate.folder / "decision", **paths)
    assert not (gate.folder / "decision").exists()


@pytest.mark.slow
def test_a_rung_of_a_climb_is_not_compared_with_a_rung_below(gate: Gate) -> None:
    def of(label: str, origin: str, plan: str = "") -> str:
        # A recurring run does not know the digest of the data's source, the first of `ORIGIN`.
        digests = {**dict.fromkeys(ORIGIN[1:], origin), **({PLAN: plan} if plan else {})}
        return StepArguments(settings=CALM.model_dump(), label=label, source_digests=digests).model_dump_json()

    assert gate.decided("low", 8, of(LABELS, "one climb"))["decision"] == "promote"
    others = [(TRAINING, "another climb"), (WORDS, "one climb"), (LABELS, "one climb"), ("", "one climb")]
    for rung, climb, *plan in (*others, (TRAINING, "one climb", "another plan for the same options")):
        another = gate.decided(f"another {rung} {climb}", 9, of(rung, climb, *plan))
        assert another["decision"] == "keep" and "p of at most 0.05 is asked for" in another["reason"]
    digest, client = gate.models.find("1").tags[DATASET], mlflow.MlflowClient(gate.uri)
    client.set_model_version_tag(CALM.model_name, "1", DATASET, "of other data")
    assert gate.decided("other data", 9, of(TRAINING, "one climb"))["decision"] == "keep"
    client.set_model_version_tag(CALM.model_name, "1", DATASET, digest)
    high = gate.decided("high", 9, of(TRAINING, "one climb"))
    assert (high["decision"], high["comparison"], high["champion_before"]) == ("promote", None, "1")
    assert "the champion, version 1, is of a rung below, whose systems were candidates" in high["reason"]
    assert gate.aliases() == {CHAMPION: "8", PREVIOUS: "1"}
