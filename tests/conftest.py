"""Tiny real parts that the tests share: a dataset, and random models of each kind. Nothing is downloaded."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest

from gnn_encoder.artifacts import Dataset, DatasetWriter, Run, drafting

if TYPE_CHECKING:
    from trained_root import Trained

TOPICS = ("river", "stone", "cloud", "engine", "violin", "copper", "garden", "letter", "winter", "market")
DETAILS = ("north", "old", "bright", "heavy", "silent", "broken", "early", "hidden", "narrow", "warm")
WORDS = (*TOPICS, *DETAILS, "the", "of", "a", "what", "about", "is", "and", "in")

LONGEST = (
    "test_resume.py", "test_rerank_pipeline.py", "test_pipeline.py", "test_launch.py", "test_team.py",
    "test_promote.py", "test_submission.py", "test_train_reranker.py",
)  # fmt: skip
"""Files that take a minute or more of a core, in the order in which they begin."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
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
            place = np.concatenate([1 + passage % 4, np.zeros(25, int)])
            citations = [passage[:-4:4], passage[4::4]]
            writer.structure([ids, titles, document, parent, place], [f"d{i}" for i in section], citations)
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
    positive = {q: p for each in labels for q, p in zip(each.query, each.passage, strict=True)}
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


def write_tiny_backbone(path: Path) -> Path:
    """A random 2-layer BERT of width 32 with a WordPiece tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    write_tokenizer(path)
    torch.manual_seed(0)
    vocabulary = len((path / "vocab.txt").read_text(encoding="utf-8").splitlines())
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=64,
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
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("GNN_ENCODER_FORK_AFTER", "0")  # all runs of a test process have one fork server
        yield Trained(tmp_path_factory.mktemp("pipeline"), tiny_dataset, tiny_backbone, tiny_seq2seq)
