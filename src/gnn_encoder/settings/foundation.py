"""The settings of the steps that lead from raw text to the initial dual encoder, in their order."""

import re
from collections.abc import Iterator
from typing import Any, Literal

from gnn_encoder.settings.shared import (
    MINILM,
    Backbone,
    ContrastiveTraining,
    Distillation,
    Inference,
    LargeModelTraining,
    LongPassages,
    OnNodes,
    Optimization,
    Published,
    Sharded,
    VectorsOfTexts,
    VectorType,
    is_address,
)
from gnn_encoder.settings.values import Count, Fraction, PositiveFloat, PositiveInt, StepSettings


class Ingest(StepSettings):
    """Reads a dataset of any layout into one format."""

    dataset: str = ""
    """Path or URI of the data, an `ir_datasets:ID`, or `python-docs`. There is no default."""
    format: Literal["auto", "beir", "msmarco", "dpr", "markup", "documents", "ir_datasets", "python-docs"] = "auto"
    """`markup`: a folder of Markdown and HTML files, of which each paragraph is a passage. `documents`: a folder of
    these, of text, PDF, DOCX, PPTX and EPUB files, whose passages are paragraphs of a section, joined."""
    passage_words: PositiveInt = 150
    """documents: most words of a passage, about. MiniLM reads 256 tokens, some 190 English words."""
    overlap_words: Count = 0
    """documents: words at a passage's beginning that end the one before, in the same section."""
    file_seconds: PositiveInt = 60
    """documents: a file that takes longer to read is left out and listed."""
    on_bad_rows: Literal["refuse", "drop"] = "refuse"
    """`refuse`: rows that cannot be used stop the run. `drop`: they are left out and counted. Of rows with the same id
    the first stays; of labels that contradict each other none does, as if nobody had judged the pair."""
    dev_fraction: Fraction = 0.1
    """Share of the training queries that become dev queries where the data has no dev split."""
    max_train_queries: Count = 0
    """Most training queries that are kept with their labels, by a seeded draw. Dev and test stay as they are, also
    where they are split off from train. 0: all."""
    max_trained_queries: Count = 0
    """Most training queries that models are trained on, by a seeded draw. The others stay with their labels: as nodes
    of the graph with edges to their labelled passages, in the systems of `encode_with_labels`, among known positives
    and in the strata. 0: all. `run --budget` sets it where not all fit."""
    max_dev_queries: Count = 0
    """Most dev queries that are kept, by a seeded draw. 0: all. Each system ranks them, and cross-encoders take long
    for thousands. A TREC run file as first stage must not have other queries."""
    document_depth: Count = 0
    """Data with documents: cuts them, so that each section among the first so many levels of a document's tree is a
    document of its own. Its parts down to the next cut are in it; passages above all sections stay in the old document.
    1: the top sections become documents, for data with too few documents to rank. 0: documents as they are."""
    twin_similarity: Fraction = 0.0
    """Training queries of equal text share their positives and are masked together. So do training queries whose sets
    of words are at least this similar (Jaccard; `data/twins.py` says what it costs and where it errs). 1: equal sets of
    words. 0: equal texts alone."""
    copy_similarity: Fraction = 0.0
    """Passages of equal title and text are copies of each other: no copy of a query's positive is a negative of the
    query. So are passages whose sets of words are at least this similar (Jaccard), and copies of copies; that holds all
    texts in memory (`data/copies.py`). 0: equal texts alone."""
    recurrence_similarity: Fraction = 0.8
    """The audit calls a query recurring if its set of words is at least this similar (Jaccard) to that of a training
    query. Nothing is left out; `evaluate` also measures without such test queries. 0: equal texts alone."""
    ignore_identical_ids: bool = True
    """A passage with the id of a query is the query itself, as in ArguAna, and is left out of its hits, by BEIR's rule
    of this name: in every ranking, as a candidate of training, and in the figures. A passage with other words is a hit,
    because then the ids are equal by chance, if the query is labelled with it, or if the data are not in BEIR's layout
    (MS MARCO numbers queries and passages alike). `data check` counts the queries that the rule applies to."""
    labels: str = ""
    """A file of `gnn-encoder labels add` (`labels.jsonl`): further labels of training queries. `run`, `update` and
    `retrain` take the labels that were added to the bundle in ROOT/latest, if it was made from the same data."""
    forgotten: str = ""
    """A file with digests of texts that are left out, with their labels. The commands that run a
    pipeline take that of the root in which `gnn-encoder forget` was run."""
    log: str = ""
    """A log of searches, CSV or JSON lines (`data/log_rows.py`): query, passage, and a count or clicks and views.
    Counts above chance become labels. `run --log FILE` sets it."""
    log_clicks: PositiveInt = 2
    """Fewest clicks on a passage for a label of a query in the log. Queries without such a passage are left out."""
    log_chance: Fraction = 0.05
    """A count is a label if chance explains as many clicks with a smaller probability. 1: any count of `log_clicks`."""
    packages: tuple[str, ...] = ()
    """python-docs: installed packages to read besides the standard library."""
    max_passages: Count = 0
    """python-docs: most passages that are kept (whole docstrings, by a seeded draw). 0: all."""
    query_field: str = ""
    """A field of queries.jsonl, or of `metadata` there: the report has figures of the queries with each of its most
    frequent values; or, if all values are dates of ISO 8601, of the older and of the newer half. Empty: none."""
    seed: Count = 0
    """Of all draws."""
    chosen_on_dev: tuple[str, ...] = ()
    """Settings of later steps that choose by dev queries, such as `train_gnn.keep`: data without a labelled dev query
    are refused, because such a step would fail after hours. The pipeline sets it."""
    needs: Literal["labels", "judged", "climb", "passages"] = "labels"
    """What the data must have besides passages. `labels`: queries with a relevant passage to train on, and others to
    measure with. `judged`: these others alone. `climb`: these others, and if training queries are labelled, what
    `labels` needs. `passages`: nothing, because queries will be written. The pipeline sets it."""


class Encode(Inference, VectorsOfTexts, LongPassages):
    """Encodes the corpus and the queries with a published encoder as it is."""

    encoder: str = MINILM
    """A Hugging Face name, a local folder, or `minilm`; or the address of an embeddings service in OpenAI's form,
    `http://…/v1#MODEL`, to which all texts are sent (`models.address`: how long texts may be; `models.service`: where
    the key is sent). Empty, with `vectors`: no other text can be encoded."""
    others: tuple[str, ...] = ()
    """Further encoders, named as `encoder`. Each encodes the corpus and the queries; `choose_encoder` chooses the one
    with which a run goes on."""
    vectors: str = ""
    """A folder with the vectors of the corpus and the queries, made elsewhere (`data.given_vectors`). The encoder then
    encodes later questions only."""
    query_length: PositiveInt = 64
    """Tokens of a query, special tokens included."""
    passage_length: PositiveInt = 256
    """Tokens of title and text, special tokens included."""
    vector_type: VectorType = "fp16"
    """As `build_graph.vector_type`."""
    previous: str = ""
    """The `passage_vectors` of an earlier run, of which those of unchanged texts are reused. An update sets it."""

    @property
    def by_name(self) -> dict[str, "Encode"]:
        """Short name of each encoder → the settings to encode with it alone.

        The name is the last part of a path or an address. Numbers keep apart names that are equal but for signs, and
        name what has neither Latin letters nor digits: names of calls, links and files keep nothing else.
        """
        named, taken = {}, {""}
        for number, encoder in enumerate((self.encoder, *self.others), 1):
            name = re.split("[/#]", encoder.rstrip("/#"))[-1]
            while (kept := re.sub(r"[^a-z0-9]+", "", name.lower())) in taken:
                name = f"{name} {number}"
            taken.add(kept)
            named[name] = self.model_copy(update={"encoder": encoder, "others": ()})
        return named

    @property
    def elsewhere(self) -> bool:
        """Whether the weights of one of the encoders are elsewhere, so that a training cannot start from the best."""
        return bool(self.vectors) or any(map(is_address, (self.encoder, *self.others)))

    def _problems(self) -> Iterator[str]:
        encoders = (self.encoder, *self.others)
        if self.in_windows and (self.elsewhere or not self.encoder):
            yield f"encode.long_passages = {self.long_passages} needs an encoder on this machine: set it to cut"
        elif self.in_windows and 2 * self.window_overlap > self.passage_length:
            yield "encode.window_overlap: windows share at most half of passage_length tokens"
        elif self.others and self.vectors:
            yield "vectors were made by one encoder: name no other one in encode.others (one --encoder, or none)"
        elif self.others and not all(encoders):
            yield "encode.encoder and encode.others: an encoder has no name"
        elif twice := [name for number, name in enumerate(encoders) if name in encoders[:number]]:
            yield f"the encoder {twice[0]} is named twice: name each once"


class Bm25Retrieve(Sharded):
    """BM25's hits: the first candidates, and a system of the final table. Tasks divide the queries; `index_bm25` has
    BM25's parameters."""

    train_depth: Count = 100
    """Hits kept for each training query (the source of negatives). 0: no training query is searched."""
    eval_depth: PositiveInt = 1000
    """Hits kept for each dev and test query (R@1000 needs 1000)."""


class TrainDpr(Backbone, ContrastiveTraining, OnNodes):
    """The dual encoder that retrieves candidates, trained with BM25 negatives and in-batch negatives."""

    negative_depth: PositiveInt = 50
    """Negatives are drawn from this many first hits of BM25, without the positives."""


class DenseRetrieve(Inference, Sharded, LongPassages):
    """Encode the corpus and search it for every query. Tasks divide the passages, in blocks of 65,536."""

    train_depth: PositiveInt = 50
    """As in `bm25_retrieve`."""
    eval_depth: PositiveInt = 1000
    """As in `bm25_retrieve`."""


class TrainCrossEncoder(Published, LargeModelTraining, OnNodes):
    """M_ce: a linear head on [CLS], trained on positives and retrieved negatives."""

    backbone: str = "bert-base-uncased"
    """A pretrained encoder that is not causal. A classification head of its own is not read: the head is new."""
    head_learning_rate: PositiveFloat = 1e-3
    """Of the new linear head, which starts at random."""
    pair_length: PositiveInt = 160
    """Tokens of `[CLS] query [SEP] passage [SEP]`. The query has at most half of them, the passage the rest."""
    negatives: PositiveInt = 4
    """Negatives per positive, drawn again in each epoch."""
    negative_depth: PositiveInt = 50
    """They are drawn from this many first hits of DPR and of BM25."""
    loss: Literal["pointwise", "pairwise_margin", "pairwise_softmax"] = "pointwise"
    """`pointwise`: binary cross-entropy of each pair. `pairwise_margin`: a positive's score has to exceed that of
    each of its negatives by the margin (BERT-DMN eq. 4). `pairwise_softmax`: negative log-likelihood of a positive
    among its negatives (ColBERT). Pairwise scores order a query's passages; they are not calibrated as the
    probabilities by which `generate_queries` and `select_training_set` choose."""
    margin: PositiveFloat = 0.2
    """Of `pairwise_margin`, in units of the score (here a logit). 0.2 is BERT-DMN's, whose scores lie in [0, 1]."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if not self.is_trained and (self.nodes, self.processes) not in ((1, 1), (1, "auto")):
            yield "a published re-ranker as it is needs one process: set nodes and processes to 1"


class ScoreCandidates(Inference, Sharded):
    """Scores and [CLS] vectors of the candidates, once per distinct pair."""

    candidates: PositiveInt = 50
    """Candidates per training query, from DPR and BM25 in turn by rank. Labelled positives are always among them."""


class TrainQueryGenerator(Optimization, OnNodes):
    """Positive passage → query (SS-BERT: BART-base, 5 epochs, batch 64, dropout 0.1)."""

    generator: str = "facebook/bart-base"
    """A Hugging Face seq2seq model or causal language model, `smollm2` (SmolLM2-135M-Instruct, a Python package), or an
    encoder (`minilm`), which becomes an encoder–decoder pair."""
    separator: str = "\nQuestion:"
    """Text between passage and query of a causal model."""
    instruction: str = ""
    """Text before the passage in the chat template of a causal model, such as "Write a search query that this text
    answers." The query is the model's answer. Empty: passage, `separator` and query are one plain text."""
    trained: bool = True
    """Off: the model writes queries as it is, for one that follows an instruction."""
    passage_length: PositiveInt = 256
    """Most tokens of a passage that the generator reads."""
    query_length: PositiveInt = 32
    """Most tokens of a query that the generator reads in training, and writes."""
    max_pairs: Count = 0
    """Most labelled pairs that are trained on, by a seeded draw. 0: all."""
    held_out: Fraction = 0.1
    """Largest share of the training queries that is held out for ROUGE (SS-BERT splits 8:1:1; here dev and test are
    one)."""
    rouge_pairs: PositiveInt = 200
    """Held-out pairs that ROUGE is computed on. No more queries are held out than these need; fewer, or none, where
    the pairs of their passages would be more than half of all pairs."""
    tokens_per_pass: Count = 0
    """Tokens of a batch, padding included, whose activations are in memory at a time. 0: 1,024 on a CPU, 8,192 on a
    GPU. With bf16 on a CPU, `smollm2` needs about 4.4 GB with 1,024 and 3.8 GB with 512."""

    def _problems(self) -> Iterator[str]:
        if not self.trained and not self.instruction:
            yield "train_query_generator.trained = false needs an instruction that says what to write"
        if not self.trained and (self.nodes, self.processes) not in ((1, 1), (1, "auto")):
            yield "train_query_generator.trained = false needs one process: set nodes and processes to 1"


class Negatives(StepSettings):
    """Which candidates are hard negatives."""

    negative_below: Fraction = 0.1
    """Scored candidates: those of a lower probability."""
    negative_depth: PositiveInt = 100
    """A run: this many first hits of a query, without known positives. The re-ranking pipeline sets it to
    `train_reranker.negative_depth`."""


class GenerateQueries(Inference, Negatives, Sharded):
    """One query per distinct negative (SS-BERT 3.2)."""

    negatives_per_query: PositiveInt = 8
    """Hard negatives per training query that get a generated query: from the highest cross-encoder rank on, or drawn
    among a run's hits."""
    max_passages: Count = 0
    """Most distinct negatives that get a query, by a seeded draw. 0: all."""
    beams: PositiveInt = 1
    """Beams of the search. 1: greedy decoding."""
    top_k: Count = 0
    """Sample each token from this many likeliest ones. 0: no sampling."""
    temperature: PositiveFloat = 1.0
    """Of sampling: logits are divided by it."""
    sentence_encoder: str = MINILM
    """sim(q, q_G) is the cosine of this model's sentence embeddings."""
    seed: Count = 0
    """Of the draws of negatives, and of sampling."""

    @property
    def decoding(self) -> dict[str, Any]:
        """How queries are written, as keyword arguments of `generate`."""
        return self.model_dump(include={"beams", "top_k", "temperature", "seed"})

    def _problems(self) -> Iterator[str]:
        if self.top_k and self.beams > 1:
            yield "generate_queries samples (top_k) or searches (beams): set one of them"


class SelectTrainingSet(Negatives):
    """Denoising (RocketQA), negative selection and augmentation (SS-BERT)."""

    positive_above: Fraction = 0.9
    """A candidate of a higher probability is a denoised positive."""
    negatives_per_example: PositiveInt = 8
    """Hard negatives stored with an example. Training draws from them."""
    selection: bool = True
    """Add the triples in which the generated query of the negative is similar to the query."""
    selection_mix: Literal["equal", "once"] = "equal"
    """`equal`: as many as the originals (SS-BERT), repeated where there are fewer; `once`: each once, for runs in which
    few negatives have a generated query. The re-ranking pipeline sets `equal`."""
    selection_threshold: Fraction = 0.3
    """t_G."""
    augmentation: bool = True
    """Turn negatives whose generated query is not similar into positives of that query. The re-ranking pipeline selects
    and augments in any case, because each of its systems takes what it needs."""
    augmentation_threshold: Fraction = 0.1
    """t_A."""
    seed: Count = 0
    """Of the draws of negatives and examples."""


class TrainDualEncoder(Backbone, ContrastiveTraining, Distillation, OnNodes):
    """M_de, the initial dual encoder (10 epochs, warm-up 0.1, lr 2e-5)."""

    start_from: Literal["backbone", "dpr", "dual_encoder"] = "backbone"
    """`dual_encoder`: from M_de, which only `train_converged` can."""
    distillation: Fraction = 0.0
    """w: the loss is (1 − w) · eq. 2 + w · the KL divergence from M_ce's scores of each query's candidates. Passages
    that no query is labelled with are among these candidates. 0: no distillation (GNN-encoder 3.4)."""
    patience: Count = 0
    """With `keep: best`, the training ends after so many epochs in a row without a higher dev figure. 0: after
    `epochs`."""

    def _problems(self) -> Iterator[str]:
        if self.patience and self.keep != "best":
            yield "train_dual_encoder.patience needs keep: best: without a best epoch there is nothing to wait for"


class TrainConverged(StepSettings):
    """Trains M_de further until it is no better on dev: a baseline that more training does not improve.

    It has M_de's training set and all other settings of `train_dual_encoder`. It costs the further training, and one
    more encoding of the corpus.
    """

    epochs: Count = 20
    """Most further epochs. 0: no such system. The presets of the papers have none: their M_de trains ten epochs."""
    patience: PositiveInt = 3
    """The training ends after so many epochs in a row without a higher MRR@10 of the dev queries in their pool, and the
    best epoch is kept, which may be M_de as it was. The figure also moves by chance, so 1 would often end too soon."""
    learning_rate: PositiveFloat | Literal["same"] = "same"
    """`same`: that of `train_dual_encoder`."""
    schedule: Literal["linear", "constant"] = "constant"
    """The learning rate rises in the first tenth (`warmup`) of an epoch. `constant`: then it stays, so that an epoch
    does not depend on the largest number of epochs, which is seldom reached. `linear`: it falls to 0 at that number."""

    def of(self, training: TrainDualEncoder) -> TrainDualEncoder:
        """Returns the settings of the further training of a dual encoder that was trained with `training`."""
        epochs = max(1, self.epochs)
        rate = training.learning_rate if self.learning_rate == "same" else self.learning_rate
        return training.model_copy(
            update={
                "start_from": "dual_encoder", "epochs": epochs, "patience": self.patience, "keep": "best",
                "learning_rate": rate, "schedule": self.schedule, "warmup": training.warmup / epochs,
            }
        )  # fmt: skip
