"""What is counted of the data, and measured of the machine, before a plan."""

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import write_tiny_backbone
from plan_inputs import RATES, facts
from torch import nn

from gnn_encoder.artifacts import Dataset
from gnn_encoder.inference.tokens import Tokens
from gnn_encoder.models.backbone import load_tokenizer
from gnn_encoder.models.dual_encoder import DualEncoder, TextEncoder
from gnn_encoder.planning import rates as measuring
from gnn_encoder.planning.facts import data_facts
from gnn_encoder.planning.plan import plan_run
from gnn_encoder.planning.rates import measure_rates
from gnn_encoder.planning.rung_times import Candidate
from gnn_encoder.settings.foundation import TrainDpr
from gnn_encoder.settings.shared import LargeModelTraining, LongPassages
from gnn_encoder.training.adapters import large_training
from gnn_encoder.training.contrastive import new_dual_encoder


def test_facts_are_counted(tiny_dataset: Dataset, tiny_backbone: Path) -> None:
    counted = data_facts(tiny_dataset, str(tiny_backbone), 0)
    assert (counted.passages, counted.queries, counted.labels) == (100, {"train": 60, "dev": 20, "test": 20}, 60)
    assert counted.shared == 0.0  # each passage has one query
    labelled = set(tiny_dataset.split_qrels("train").passage.tolist())
    lengths = Tokens.of(
        load_tokenizer(str(tiny_backbone)), tiny_dataset.passages.take(sorted(labelled)).full_texts(), 512
    ).lengths
    assert counted.labelled_tokens.tolist() == sorted(lengths.tolist()) and len(labelled) == 60
    assert len(counted.passage_tokens) == 100 and counted.mean_passage(8) <= 8 < counted.mean_passage(64)


@pytest.mark.parametrize("speed", [20_000, 200])
def test_a_call_s_own_cost_is_not_the_speed_of_encoding(
    speed: int, tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, calls = [0.0], []

    def encode(encoder: TextEncoder, tokens: Tokens, out: np.ndarray, filled: bool) -> None:
        assert len(out) == len(tokens)
        calls.append(int(tokens.lengths.sum()))
        clock[0] += 0.1 + (calls[-1] if not filled else max(calls[-1], 4096)) / speed

    monkeypatch.setattr(measuring, "encode_tokens", encode)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(measuring, "_training", lambda *_: 1.0 + speed)
    assert 0.93 * speed < measure_rates(tiny_dataset, str(tiny_backbone), 0).encoding < speed
    assert calls[-1] / speed < 2 * measuring.SECONDS
    if speed == 20_000:  # what the first call alone would say
        assert calls[0] / (0.1 + calls[0] / speed) < 0.2 * speed
    else:  # a call that takes long enough is made once more, after the warm-up
        assert calls == [calls[0]] * 2


@pytest.mark.parametrize("queries", [32, 10])
def test_the_rate_of_training_is_tokens_over_seconds(
    queries: int, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at this clock is a second later, and a GPU works on for two seconds. So a batch is read in three
    # seconds, and the optimizer takes three. The first batch does not count, the second is the last.
    clock = count()
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=partial(next, clock)))
    monkeypatch.setattr(measuring, "_wait", lambda: (next(clock), next(clock)))
    settings = TrainDpr(backbone=str(tiny_backbone))
    asked, given = (Tokens.flatten([[5] * length] * 4) for length in (3, 7))
    rate = measuring._training(new_dual_encoder(settings), asked, given, settings, queries * 2 * 7)
    assert rate == pytest.approx(1 / (3 / (queries * (3 + 2 * 7)) + 3 / (32 * (3 + 2 * 7))))


def test_a_measured_training_needs_no_query(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[np.ndarray] = []

    def look(model: DualEncoder, queries: Tokens, *_: object) -> float:
        asked.append(queries.lengths)
        return 100.0

    monkeypatch.setattr(measuring, "_encoding", lambda *_: 100.0)
    monkeypatch.setattr(measuring, "_training", look)
    monkeypatch.setattr(measuring, "UNKNOWN_QUERY", 5)
    measure_rates(tiny_dataset, str(tiny_backbone), 0)
    monkeypatch.setattr(tiny_dataset, "queries", tiny_dataset.queries.slice(0, 0))
    measure_rates(tiny_dataset, str(tiny_backbone), 0)
    longest = [lengths.max() for lengths in asked]
    assert longest[0] > longest[1] == 5


def test_a_model_with_few_positions_is_measured_too(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    backbone = write_tiny_backbone(tmp_path / "bert", positions=8)
    assert data_facts(tiny_dataset, str(backbone), 0).passage_tokens.min() > 8
    rates = measure_rates(tiny_dataset, str(backbone), 0)
    assert rates.encoding > 0 and rates.training > 0 and "memory" in rates.machine


def test_the_measured_training_has_the_dropout_of_the_planned_ones(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropouts: set[float] = set()

    def look(model: nn.Module, *_: object) -> float:
        dropouts.update(module.p for module in model.modules() if isinstance(module, nn.Dropout))
        return 100.0

    monkeypatch.setattr(measuring, "_encoding", look)
    monkeypatch.setattr(measuring, "_training", look)
    measure_rates(tiny_dataset, str(tiny_backbone), 0)
    assert dropouts == {plan_run(facts(), RATES, 3600.0, "minilm").settings["shared"]["dropout"]}


def test_the_measured_training_is_that_of_the_settings(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[set[str]] = []
    checkpointed: list[bool] = []

    def look(model: DualEncoder, *_: object) -> float:
        backbone = model.passage_encoder.backbone
        trained.append({name for name, value in backbone.named_parameters() if value.requires_grad})
        checkpointed.append(backbone.is_gradient_checkpointing)
        return 100.0

    monkeypatch.setattr(measuring, "_encoding", lambda *_: 100.0)
    monkeypatch.setattr(measuring, "_training", look)
    for settings in (LargeModelTraining(lora_rank=4), LargeModelTraining(gradient_checkpointing=True)):
        measure_rates(tiny_dataset, str(tiny_backbone), 0, settings)
    assert trained[0] and all("lora_" in name for name in trained[0])
    assert not any("lora_" in name for name in trained[1])
    assert checkpointed == [False, True]


@pytest.mark.usefixtures("on_cpu")
def test_a_training_with_checkpointing_is_measured_in_bf16(
    tiny_dataset: Dataset, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts that are computed again in the backward pass use the same attention."""
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    settings = TrainDpr(backbone=str(tiny_backbone), gradient_checkpointing=True, precision="bf16")
    model = new_dual_encoder(settings)
    tokens = Tokens.of(model.passage_encoder.tokenizer, ["a text", "another one"] * 20, 32)
    with large_training([model.query_encoder.backbone, model.passage_encoder.backbone], settings):
        assert measuring._training(model, tokens, tokens, settings, 2048) > 0


def test_an_encoding_takes_the_tokens_of_all_windows() -> None:
    lengths = np.array([5, 100, 101, 190, 1000])
    texts = [["word"] * length for length in lengths]
    windows = LongPassages(long_passages="windows", window_overlap=10)
    read = 0
    for text in texts:
        start = 0
        read += len(text[:100])
        while start + 100 < len(text):
            start += 90
            read += len(text[start : start + 100])
    plain = replace(facts(), passage_tokens=lengths)
    windowed = replace(plain, reading=windows)
    assert windowed.mean_read(100) == pytest.approx(read / 5)
    assert windowed.mean_passage(100) == plain.mean_read(100) == pytest.approx(405 / 5)
    late = replace(plain, reading=LongPassages(long_passages="late"))
    assert late.mean_read(100) == pytest.approx((405 + lengths.sum()) / 5)
    seconds = [Candidate("a", "a", some, RATES).seconds(100) for some in (plain, windowed)]
    assert seconds[1] - seconds[0] == pytest.approx(13_000 * (read - 405) / 5 / RATES.encoding)
    calls = [plan_run(some, RATES, 36_000.0, "minilm").calls for some in (plain, windowed)]
    assert calls[1]["build_graph"] > calls[0]["build_graph"] and calls[1]["encode_nodes"] == calls[0]["encode_nodes"]


@pytest.mark.parametrize(
    ("trained", "taken", "said"), [([10.0, 50.0], 50.0, 1), ([10.0, 10.0, 10.0], 10.0, 2), ([50.0], 50.0, 0)]
)
def test_unlikely_rates_are_measured_again(
    trained: list[float], taken: float, said: int, tiny_dataset: Dataset, tiny_backbone: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    left = iter(trained)
    monkeypatch.setattr(measuring, "_encoding", lambda *_: 200.0)
    monkeypatch.setattr(measuring, "_training", lambda *_: next(left))
    assert measure_rates(tiny_dataset, str(tiny_backbone), 0).training == taken
    assert not list(left) and capsys.readouterr().err.count("measured again") == said
