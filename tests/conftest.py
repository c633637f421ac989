"""Tiny real parts that the tests share: a dataset, and random models of each kind. Nothing is downloaded."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("MLFLOW_TRACKING_URI", None)  # a test that logs to a store names it

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting
from gnn_encoder.settings.services import ALLOWED

if TYPE_CHECKING:
    from trained_root import Trained

TOPICS = ("river", "stone", "cloud", "engine", "violin", "copper", "garden", "letter", "winter", "market")
DETAILS = ("north", "old", "bright", "heavy", "silent", "broken", "early", "hidden", "narrow", "warm")
WORDS = (*TOPICS, *DETAILS, "the", "of", "a", "what", "about", "is", "and", "in")

LONGEST = (
    "test_resume.py", "test_pipeline.py", "test_after_a_run.py", "test_rerank_pipeline.py", "test_local.py",
    "test_promote.py", "test_submission.py", "test_train_reranker.py",
)  # fmt: skip
"""Files that take a minute or more of a core, in the order in which they begin."""


THINNED = {
    "test_a_bert_reads_as_transformers_does": 4,
    "test_a_bundle_is_registered_where_its_artifact_lies": 2,
    "test_a_bundle_that_the_evaluation_is_not_of_is_refused": 2,
    "test_a_cluster_file_changes_needs_alone": 2,
    "test_a_damaged_checkpoint_is_said_and_starts_anew": 6,
    "test_a_killed_training_with_patience_ends_where_an_undisturbed_one_ends": 5,
    "test_a_mistake_is_one_line_and_exit_code_2": 3,
    "test_a_passage_is_never_a_value_of_its_own_context": 8,
    "test_a_query_is_known_in_every_form_of_its_characters": 3,
    "test_a_query_that_is_not_trained_on_finds_its_labelled_passage": 2,
    "test_a_resumed_training_has_the_vectors_that_it_had": 2,
    "test_a_run_is_the_same_after_any_other": 4,
    "test_a_run_of_an_earlier_version_is_explained_and_updated": 2,
    "test_a_token_that_cannot_be_sent_is_refused_and_not_shown": 4,
    "test_a_value_of_another_kind_is_refused_for_any_setting": 4,
    "test_an_update_equals_a_graph_from_nothing": 3,
    "test_an_update_sends_only_what_changed_and_equals_a_whole_export": 2,
    "test_behaviour_in_the_settings_modules_counts": 2,
    "test_bundles_that_no_later_run_could_read_are_refused": 3,
    "test_each_loss_begins_as_for_equal_scores_and_falls": 4,
    "test_each_passage_is_drawn_as_often_as_the_shares_say": 3,
    "test_equal_to_a_run_from_nothing": 4,
    "test_every_kind_learns_and_scores_as_it_did_when_it_is_loaded": 6,
    "test_every_number_is_finite_and_bounded": 10,
    "test_labels_that_help_are_chosen": 3,
    "test_learns_and_reports": 3,
    "test_live_neighbours_have_gradient_and_score_as_stored_ones_before_training": 3,
    "test_loss_is_the_sum_over_tokens_one_pair_at_a_time": 3,
    "test_mde_vectors_or_the_trained_encoders": 2,
    "test_nothing_changed": 2,
    "test_odd_bytes_are_read_or_refused": 3,
    "test_resumed_equals_undisturbed": 4,
    "test_scores_are_the_rerankers_and_the_weighted_log_likelihood": 2,
    "test_several_devices_give_what_one_gives": 4,
    "test_shares_equal_a_loop_and_add_up_to_the_stored_score": 8,
    "test_streamed_vectors_equal_the_networks": 24,
    "test_the_best_variant_is_cut_from_the_graph_and_trained": 2,
    "test_the_gate_compares_such_a_bundle": 2,
    "test_the_sentence_says_what_the_figures_say": 2,
    "test_the_setting_reaches_contrastive_training": 2,
    "test_the_training_set_is_the_same": 3,
    "test_through_the_gnn": 3,
    "test_training_ends_when_dev_rises_no_more_and_the_best_epoch_is_kept": 2,
    "test_training_re_ranking_and_explanations_agree_also_after_loading": 2,
    "test_triples_are_the_labelled_ones_and_those_of_the_training_set": 3,
    "test_undo_restores_every_bit_and_nothing_of_the_corpus_is_copied": 3,
    "test_values_that_the_arguments_hold_do_not_count": 3,
    "test_vectors_have_the_type_of_the_dual_encoders": 3,
    "test_what_is_no_complete_set_is_refused": 2,
    "test_what_the_cluster_refuses_is_one_line": 3,
    "test_workers_make_the_same_batches": 4,
}
"""Test of many cases, each of a second or more → n: every n-th case is a fast test, and the others are slow ones."""


@pytest.fixture(autouse=True)
def _no_service_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "")


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test computes on the processor, also beside a GPU: its own tensors, or its settings, are of a processor."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: Counter[tuple[str, str]] = Counter()
    for item in items:
        name = item.name.partition("[")[0]
        if name in THINNED:
            if cases[item.path.name, name] % THINNED[name]:
                item.add_marker(pytest.mark.slow)
            cases[item.path.name, name] += 1
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def write_tiny_dataset(path: Path, *, documents: bool = False) -> Path:
    """100 passages, one per (topic, detail); 60 train, 20 dev, 20 test queries, one positive each.

    `documents`: four passages under a section are a document, and the first passage of each cites the next document's.
    """
    pairs = [(topic, detail) for topic in TOPICS for detail in DETAILS]
    order = np.random.default_rng(7).permutation(len(pairs))
    splits = ["train"] * 60 + ["dev"] * 20 + ["test"] * 20
    with drafting(path, "dataset") as draft:
        writer = DatasetWriter(draft)
        writer.passages(
            [f"p{i}" for i in range(len(pairs))],
            [topic for topic, _ in pairs],
            [f"the {detail} {topic} is in the {detail} {TOPICS[i % 10]}" for i, (topic, detail) in enumerate(pairs)],
        )
        writer.queries(
            [f"q{i}" for i in range(len(pairs))],
            [f"what is the {pairs[p][1]} {pairs[p][0]} number {i}" for i, p in enumerate(order)],
            splits,
            [[] for _ in pairs],
        )
        rows = list(range(len(pairs)))
        writer.qrels([f"q{i}" for i in rows], [f"p{p}" for p in order], [1] * len(rows), rows, order.tolist())
        if documents:
            passage, section = np.arange(100), np.arange(25)
            ids = [*(f"p{i}" for i in passage), *(f"s{i}" for i in section)]
            titles = [""] * 100 + [TOPICS[i % 10] for i in section]
            document = np.concatenate([passage // 4, section])
            parent = np.concatenate([100 + passage // 4, np.full(25, -1)])
            order_in_parent = np.concatenate([1 + passage % 4, np.zeros(25, int)])
            citations = [passage[:-4:4], passage[4::4]]
            writer.structure([ids, titles, document, parent, order_in_parent], [f"d{i}" for i in section], citations)
        writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_documents(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(write_tiny_dataset(tmp_path_factory.mktemp("data") / "dataset", documents=True))


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(write_tiny_dataset(tmp_path_factory.mktemp("data") / "dataset"))


def first_stage(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All queries, and eight hits of each by chance, with the positive in sixth place."""
    generator, splits = np.random.default_rng(0), ("train", "dev", "test")
    queries = np.concatenate([dataset.query_rows(split) for split in splits])
    labels = [dataset.split_qrels(split) for split in splits]
    positive = {q: p for split_labels in labels for q, p in zip(split_labels.query, split_labels.passage, strict=True)}
    hits = np.stack([generator.permutation(100)[:8] for _ in queries])
    hits[:, 5] = [positive[q] for q in queries]
    return queries, hits


def write_first_run(dataset: Dataset, path: Path) -> Path:
    """Writes the hits of `first_stage` as a run; returns its folder."""
    queries, hits = first_stage(dataset)
    with drafting(path, "run") as draft:
        Run.from_hits(queries, hits, np.zeros(hits.shape)).write(draft)
    return path


def write_tokenizer(path: Path) -> None:
    from transformers import BertTokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [str(d) for d in range(10)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *letters, *(f"##{c}" for c in letters)]
    (path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    BertTokenizerFast(vocab=str(path / "vocab.txt"), model_max_length=64).save_pretrained(path)


def write_tiny_backbone(path: Path, width: int = 32, positions: int = 64) -> Path:
    """A random 2-layer BERT with a WordPiece tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    write_tokenizer(path)
    torch.manual_seed(0)
    vocabulary = len((path / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=positions,
    )  # fmt: skip
    BertModel(config).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_backbone(tmp_path_factory.mktemp("models") / "bert")


def write_generator(seq2seq: Path, folder: Path, query_length: int) -> None:
    """A query generator with random weights that prefer some tokens; as loaded they are too small."""
    import torch

    from gnn_encoder.models.query_generator import QueryGenerator

    torch.manual_seed(1)
    model = QueryGenerator.from_pretrained(str(seq2seq), 24, query_length)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    with drafting(folder, "model") as draft:
        model.save(draft.path)


def write_tiny_seq2seq(path: Path) -> Path:
    """A random BART of width 32, one layer each side, whose config names generation settings as bart-base's does."""
    import json

    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    write_tokenizer(path)
    torch.manual_seed(0)
    vocabulary = len((path / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = BartConfig(
        vocab_size=vocabulary, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=3,
    )  # fmt: skip
    BartForConditionalGeneration(config).save_pretrained(path)
    (path / "generation_config.json").unlink()
    written = json.loads((path / "config.json").read_text(encoding="utf-8"))
    written |= {"num_beams": 4, "early_stopping": True, "no_repeat_ngram_size": 3}
    (path / "config.json").write_text(json.dumps(written), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_seq2seq(tmp_path_factory.mktemp("models") / "bart")


def write_tiny_causal(path: Path, kind: str = "llama") -> Path:
    """A random Llama, or GPT-2, of width 32 and two layers; its tokenizer knows words and has no padding token."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = ["<unk>", "</s>", *WORDS, "Question", ":", "number", *(str(number) for number in range(100))]
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", unk_token="<unk>").save_pretrained(path)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(vocabulary), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"bos_token_id": None, "eos_token_id": 1, "max_position_embeddings": 64}
    if kind == "llama":
        LlamaForCausalLM(LlamaConfig(**sizes, **ends, intermediate_size=64, num_key_value_heads=2)).save_pretrained(
            path
        )
    else:
        GPT2LMHeadModel(GPT2Config(**sizes, **ends)).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny_causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_causal(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_causal(tmp_path_factory.mktemp("models") / "gpt2", "gpt2")


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Dataset, tiny_backbone: Path, tiny_seq2seq: Path
) -> Iterator["Trained"]:
    from trained_root import Trained

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("GNN_ENCODER_FORK_AFTER", "0")  # all runs of a test process have one fork server
        yield Trained(tmp_path_factory.mktemp("pipeline"), tiny_dataset, tiny_backbone, tiny_seq2seq)
