"""Settings of the steps that train re-rankers, use them, and compare them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from gnn_encoder.errors import UserError
from gnn_encoder.settings.documents import DocumentNetwork
from gnn_encoder.settings.measures import Measure
from gnn_encoder.settings.reranking_systems import (
    ALL_SYSTEMS,
    DOCUMENT_KINDS,
    LATE_KINDS,
    NUMBERS,
    PAIR_KINDS,
    RERANKING_STUDIES,
    SYSTEMS,
    WORD_KINDS,
    RerankerKind,
)
from gnn_encoder.settings.shared import Distillation, Inference, MeasuredTraining, OnNodes, Published, TokenVectorType
from gnn_encoder.settings.values import (
    Count,
    Fraction,
    PositiveFloat,
    PositiveInt,
    StepSettings,
    described,
    known_names,
)

Weight = Annotated[float, Field(ge=0.0, strict=True)]
TextLength = Annotated[int, Field(ge=4, strict=True)]
"""Tokens of a text, three of which are special."""
MADE_WORD_VECTORS = ("backbone", "trained")
"""Values of `word_vectors` that name no file."""


class ChooseReranker(StepSettings):
    """Chooses the best re-ranker."""

    measure: Measure = "AP"
    """Of dev queries. MAP, as in the choice of an epoch (BERT-DMN 5.2)."""


class BundleReranker(StepSettings):
    """Adds the chosen re-ranker to the bundle of the first stage."""

    measure: Measure = "AP"
    """Of dev queries: that of the choice."""
    significance: Fraction = 0.05
    """A search re-ranks unasked if the p-value of the gain over the first stage is at most this
    (`recommend.significance`)."""


class TrainReranker(Published, MeasuredTraining, Distillation, DocumentNetwork, OnNodes):
    """A re-ranker, trained on positives and negatives. All kinds have the same training pairs.

    The papers differ: BERT-DMN warms up over 1,000 steps, here `warmup` is a share of all steps; SS-BERT trains ColBERT
    with 3e-6 and batches of 32 triples, here all kinds have the rate and the 32 pairs of BERT-DMN. `NUMBERS` has
    the numbers of single kinds.
    """

    kind: RerankerKind = "cross_encoder"
    """`cross_encoder`: a linear layer over [CLS] (BERT). `bert_dmn`: a memory network over the token outputs.
    `colbert`: late interaction. On word vectors: `qa_lstm`; `k_nrm`; `dmn`, a memory network. In documents: `mim`,
    `lim` and `mix_im`; their encoder is ColBERT's, so they have its settings, too. The pipeline sets the kind of each
    of its systems."""
    lite: bool = False
    """cross_encoder, bert_dmn: the backbone is frozen, and its outputs are computed once, in the first epoch (BERT-DMN
    5.1). The pipeline sets it for each of its systems."""
    cache: Literal["fp32", "fp16", "none"] = "fp32"
    """lite: how the backbone's outputs are kept on the disk. `fp16` needs half the space. `none`: they are computed
    again for each batch; on a CPU the trained weights equal those of `fp32`, bit for bit."""
    backbone: str = "bert-base-uncased"
    """A pretrained encoder; a classification head of its own is not read. For `colbert` and the kinds in documents also
    the folder of a trained one of them, such as the artifact `reranker` of another run: its linear map is the start,
    too, and trains at `learning_rate`."""
    learning_rate: PositiveFloat = 3e-5
    """Of the backbone (BERT-DMN 5.2)."""
    head_learning_rate: PositiveFloat = 3e-5
    """Of the weights that start at random, and of all weights of kinds on word vectors. BERT-DMN has one rate for all
    weights. `k_nrm` has 1e-3, unless `systems` sets another rate for it."""
    adam_epsilon: PositiveFloat = 1e-8
    """AdamW's ε. `k_nrm` has 1e-5, with a `weight_decay` of 0: Adam (BERT-DMN 5)."""
    batch_size: PositiveInt = 32
    """Pairs in a batch, positives and negatives together. `k_nrm` has 16."""
    negatives: PositiveInt = 1
    """Negatives per positive."""
    redraw_negatives: bool = False
    """Draw the negatives again in each epoch. By default every epoch has the same pairs (BERT-DMN 5.2)."""
    negative_depth: PositiveInt = 100
    """They are drawn from this many first hits of the first stage."""
    negatives_from: Literal["first_stage", "corpus"] = "first_stage"
    """`corpus`: each negative is drawn by itself, from the whole corpus or, with probability `document_negatives`, from
    the documents of the query's relevant passages (Albarede et al. 2022, section 3). `first_stage` is the default of
    the paper's kinds, too, because all systems of a table train on the same triples: set `corpus` for all of them.
    With `redraw_negatives` each epoch draws again from as many as all epochs need; the paper draws 1,000 for each
    positive. Triples of a training set keep their own negatives, and a distilled system its scored hits."""
    document_negatives: Fraction = 0.4
    """Of `corpus`. The paper has 0.4, and 0.6 for the whole corpus. Above 0 it needs data with documents."""
    triples: Literal["labelled", "selected", "augmented"] = "labelled"
    """`labelled`: each labelled pair, with negatives of the first stage. `selected`: also as many triples in which the
    generated query of the negative is like the query (SS-BERT 3.2). `augmented`: also the triples (q_G, n, p) of
    negatives n with a generated query q_G unlike the query (3.3). The section `select_training_set` has both
    thresholds."""
    loss: Literal["auto", "pointwise", "pairwise_margin", "pairwise_softmax", "listwise_distillation"] = "auto"
    """As in `train_cross_encoder`. `auto`: `pairwise_softmax` for `colbert` (Khattab and Zaharia 2020) and the kinds in
    documents, and `pairwise_margin` for the other kinds (BERT-DMN eq. 4). `listwise_distillation`: the KL divergence
    from a trained cross-encoder's scores of lists, a positive and `distillation_candidates` − 1 negatives, instead of
    `negatives`. The pipeline trains this teacher with the loss `auto`, and `score_candidates` scores with it, so these
    negatives are from the first `score_candidates.candidates` hits, not from `negative_depth`."""
    margin: PositiveFloat = 0.2
    """Of `pairwise_margin`. Scores that are logits, of `cross_encoder`, `bert_dmn` and `dmn`, are probabilities then
    (BERT-DMN 3.2)."""
    keep: Literal["last", "best"] = "best"
    """As in `train_cross_encoder`, by MAP (BERT-DMN 5.2) over a dev query's first 20 hits."""
    depth: PositiveInt | Literal["auto"] = "auto"
    """Hits of each dev and test query that are re-ranked. `auto`: 1000 for `colbert` (SS-BERT 4.1) and the kinds in
    documents, 100 for the other kinds, which read each pair."""
    pair_length: PositiveInt = 512
    """cross_encoder, bert_dmn: tokens of `[CLS] query [SEP] passage [SEP]`. On word vectors: words of each text."""
    memory_width: PositiveInt = 256
    """bert_dmn, dmn: d, the width of all states."""
    episodes: PositiveInt = 4
    """bert_dmn, dmn: passes of the memory over the sentences."""
    memory_dropout: Fraction = 0.1
    """bert_dmn, dmn: at the memory network's input, on the gates and before the output, whatever `dropout` is."""
    shared_episodes: bool = True
    """bert_dmn, dmn: whether all episodes have the same weights."""
    bidirectional: bool = False
    """bert_dmn, dmn: the sentences' GRU reads in both directions. The paper does not say."""
    memory_includes_question: bool = False
    """bert_dmn, dmn: the last GRU reads the question before the memories."""
    split_sentences: Literal["rules", "pysbd"] = "rules"
    """bert_dmn, dmn: how passages are divided into sentences. `rules`: at the marks of any script and at line ends;
    in German not after abbreviations. `pysbd`: by that package's rules for the passages' language, or for English; they
    know abbreviations, and need 100 times as long."""
    token_width: PositiveInt = 128
    """colbert: length of a token's vector."""
    query_length: TextLength = 32
    """colbert: tokens of a query."""
    passage_length: TextLength = 180
    """colbert: tokens of a passage."""
    expand_queries: bool = True
    """colbert: queries are filled up with [MASK]."""
    titles: bool = True
    """colbert: a passage's title is read before its text. Passages of structured documents have their section titles
    there. The papers' passages are their texts alone."""
    token_vectors: TokenVectorType = "fp16"
    """colbert: storage type of the passages' token vectors during re-ranking. `int8`, with one scale per token, halves
    their size; of ObliQA's 400 dev queries, MRR@10 changes for 2."""
    in_batch_negatives: bool = False
    """colbert: a positive is compared with all passages of the batch, not with its own negatives alone (ColBERT trains
    without). Known positives of the query are left out. Needs the loss `pairwise_softmax`."""
    word_vectors: str = "backbone"
    """On word vectors: the vectors at the start. `backbone`: the input embeddings of the backbone, whose words are its
    tokens. `trained`: skip-gram vectors of the corpus, by gensim. Or the path or `s3://` address of a GloVe text file
    (the paper has GloVe of width 300). With these two, words are runs of letters and digits in lower case, and a word
    without a vector gets a random one. `backbone` is the default because it needs no further package and no file."""
    train_word_vectors: bool = True
    """The vectors change in training, as in K-NRM. BERT-DMN does not say."""
    vocabulary: Annotated[int, Field(ge=3, strict=True)] = 200_000
    """Of `trained` and GloVe: so many words, the most frequent of corpus, training queries and generated queries, have
    vectors of their own; all others share one."""
    word_width: PositiveInt = 300
    """Of `trained`: the length of a vector, as of GloVe in BERT-DMN 5."""
    word_epochs: PositiveInt = 5
    """Of `trained`: gensim's passes over the corpus."""
    lstm_width: PositiveInt = 256
    """qa_lstm: hidden units of each direction (BERT-DMN 5)."""
    lstm_pooling: Literal["max", "mean"] = "max"
    """qa_lstm: BERT-DMN names both."""
    lstm_dropout: Fraction = 0.5
    """qa_lstm: of the two vectors that are compared."""
    kernels: Annotated[int, Field(ge=2, strict=True)] = 11
    """k_nrm: with μ = 1, and evenly spaced from 0.9 to -0.9."""
    kernel_width: PositiveFloat = 0.1
    """k_nrm: σ."""
    exact_kernel_width: PositiveFloat = 1e-3
    """k_nrm: σ of the kernel with μ = 1."""
    feature_scale: PositiveFloat = 0.01
    """k_nrm: factor of the log counts, so that tanh does not begin at 1. The paper's equation has 1."""

    systems: Mapping[str, Mapping[str, Any]] = {}
    """System → its settings that differ from all others', such as {bert_dmn_lite: {epochs: 20}}: a head alone learns
    with another rate than a whole network."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        for name, changes in self.systems.items():
            yield from self._problems_of(name, changes)
        if self.keep == "best" and not self.dev_queries and self.is_trained:
            yield "keep = best needs dev_queries: set keep to last, or dev_queries above 0"
        if self.in_batch_negatives and self.loss not in ("auto", "pairwise_softmax"):
            yield f"in_batch_negatives is a softmax over the batch: set loss to pairwise_softmax, not {self.loss}"
        if self.kind in DOCUMENT_KINDS and self.token_width % self.graph_heads:
            yield f"graph_heads = {self.graph_heads}: must divide token_width {self.token_width}"
        if self.kind in DOCUMENT_KINDS and (self.triples, self.loss == "listwise_distillation") != ("labelled", False):
            yield f"{self.kind} trains on labelled triples: set triples to labelled, and another loss than distillation"
        if self.loss == "pointwise" and self.kind in (*LATE_KINDS, "qa_lstm", "k_nrm"):
            yield f"loss = pointwise needs logits, which {self.kind} lacks: choose a pairwise loss"
        if self.loss == "listwise_distillation" and self.triples != "labelled":
            yield f"loss = listwise_distillation needs labelled triples, not {self.triples} ones"
        if self.loss == "listwise_distillation" and self.negatives_from != "first_stage":
            yield "loss = listwise_distillation learns the scores of hits: set negatives_from to first_stage"
        if self.lite and self.kind not in PAIR_KINDS:
            yield f"lite = true needs one of {', '.join(PAIR_KINDS)}, not {self.kind}"
        if self.lite and self.redraw_negatives:
            yield "redraw_negatives = true needs a full re-ranker: a lite one keeps what it reads"
        if self.lite and self.nodes > 1:
            yield f"nodes = {self.nodes} needs a full re-ranker: set nodes to 1 for a lite one, in its entry of systems"

    def _problems_of(self, name: str, settings: Mapping[str, Any]) -> Iterator[str]:
        if name not in ALL_SYSTEMS:
            yield f"systems: unknown system {name!r}: {known_names(name, SYSTEMS)}"
        system = ALL_SYSTEMS[name]
        kind, changes = system.kind, system.changes
        if system.evaluates:
            yield f"systems.{name} trains nothing: set systems.{system.evaluates}"
        if system.variant_of:
            yield f"systems.{name} has the settings of {system.variant_of}: set systems.{system.variant_of}"
        chosen = self.model_copy(update={**settings, "kind": kind, "lite": False, **changes})
        if fixed := {"kind", "lite", *changes, *chosen._unused} & set(settings):
            yield f"systems.{name} cannot have {', '.join(sorted(fixed))}"
        try:
            type(self).model_validate({**self.model_dump(exclude={"systems"}), **settings})
        except ValidationError as error:
            yield f"systems.{name}{'.' if error.errors()[0]['loc'] else ': '}{described(error)}"

    @property
    def scorer(self) -> str:
        """The kind of scorer that is written."""
        return "published" if self.published and self.kind == "cross_encoder" else self.kind

    @property
    def in_documents(self) -> bool:
        """Whether the re-ranker reads passages in their documents."""
        return self.kind in DOCUMENT_KINDS

    @property
    def _unused(self) -> set[str]:
        """Names of the settings that the training does not depend on."""
        if not self.is_trained and self.kind in _OWN["published"] and not self.lite:
            return {*type(self).model_fields} - _OF_PUBLISHED
        unused = {name for name, kinds in _OWN.items() if self.kind not in kinds}
        unused |= {"learning_rate", "dropout", "processes", *Published.model_fields} if self.lite else {"cache"}
        if self.published and not self.lite:
            unused |= {"backbone", "pair_length", "head_learning_rate"}
            unused |= {"token_width", "query_length", "passage_length", "expand_queries"}
        if self.resolved_loss != "pairwise_margin":
            unused.add("margin")
        distilled = self.resolved_loss == "listwise_distillation"
        unused |= {"negatives", "in_batch_negatives"} if distilled else set(Distillation.model_fields)
        if distilled:
            unused.add("negatives_from")
        unused.add("document_negatives" if distilled or self.negatives_from == "first_stage" else "negative_depth")
        if self.kind in WORD_KINDS and self.word_vectors != "backbone":
            unused.add("backbone")
        if self.word_vectors != "trained":
            unused |= {"word_width", "word_epochs"}
        return unused

    def for_system(self, name: str) -> "TrainReranker":
        """Returns the settings that the training of a system depends on; all others have their defaults.

        So a change of another kind's settings, of `depth` or of `token_vectors` trains nothing again. Raises UserError
        for settings that the system cannot have together.
        """
        system = ALL_SYSTEMS[name]
        settings, kind, changes = self.systems.get(system.variant_of or name, {}), system.kind, system.changes
        fixed = {"kind": kind, "lite": False, **changes}
        chosen = self.model_copy(update={**NUMBERS.get(kind, {}), **settings, **fixed})
        chosen = chosen.model_copy(
            update={setting: type(self).model_fields[setting].default for setting in chosen._unused}
        )
        for problem in chosen._problems():
            raise UserError(f"train_reranker of {name}: {problem}")
        return chosen

    def studied(self, study: str) -> list[str]:
        """The systems of one of `RERANKING_STUDIES`, without variants with the same settings as their system."""
        systems = RERANKING_STUDIES[study].systems
        if taken := [name for name in RERANKING_STUDIES[study].encoders.values() if self.for_system(name).published]:
            raise UserError(
                f"the study {study} compares trained encoders: set no train_reranker.published for {taken[0]}"
            )
        same = {name: ALL_SYSTEMS[name].variant_of for name in systems if not ALL_SYSTEMS[name].selection}
        return [name for name in systems if not same.get(name) or self.for_system(name) != self.for_system(same[name])]

    def teacher(self) -> "TrainReranker":
        """Returns the settings of the cross-encoder whose scores are learned.

        As a rule they are the settings of the system `cross_encoder`.
        """
        settings = dict(self.systems.get("cross_encoder", {}))
        if settings.get("loss", self.loss) == "listwise_distillation":
            settings["loss"] = "auto"
        return self.model_copy(update={"systems": {"cross_encoder": settings}}).for_system("cross_encoder")

    @property
    def resolved_loss(self) -> Literal["pointwise", "pairwise_margin", "pairwise_softmax", "listwise_distillation"]:
        """The loss, with `auto` resolved."""
        if self.loss == "auto":
            return "pairwise_softmax" if self.kind in LATE_KINDS else "pairwise_margin"
        return self.loss

    def hits_of(self, kind: RerankerKind) -> int:
        """Returns the depth of a kind as a number."""
        if self.depth == "auto":
            return 1000 if kind in LATE_KINDS else 100
        return self.depth


class EvaluatePassages(Inference):
    """Adds the log-likelihood of the query, given the passage, to a re-ranker's score (SS-BERT 3.4).

    s = s_passage + k_s · s_query, s_query = Σ_t log P(tok_t | tok_<t, passage) under the query generator.
    """

    system: str = "SS-BERT(d)"
    """The run's name in every table. The pipeline sets it."""
    measure: Measure = "RR@10"
    """The first of `evaluate.measures`. The pipeline sets it."""
    generator_weights: Annotated[tuple[Weight, ...], Field(min_length=1)] = (0.05, 0.075, 0.1, 0.125, 0.15)
    """Values of k_s: the first that is best on dev queries is taken, and without labelled dev queries the middle one.
    SS-BERT 4.3: it performs best within [0.05, 0.15]."""
    evaluation_depth: PositiveInt = 20
    """Hits of each query that are evaluated; later hits stay below them. A pair costs about as much as a cross-encoder
    of the generator's size, so this is less than SS-BERT's 1000, and enough to change MRR@10."""
    length_normalised: bool = False
    """Divide s_query by the query's number of tokens. SS-BERT does not."""


class PropagateSections(StepSettings):
    """Mixes a re-ranker's score of a passage with the mean score of the passage's section (QSF sectionPropagateAVG).

    s'(p) = (1 − μ) s(p) + μ · mean of s over the hits in p's section. This is our reading of a baseline of Albarede et
    al. (2022), who cite their paper of 2021 for it and give no equation. The section is the passage's parent node. The
    mean is over the section's passages among the query's re-ranked hits, p included. Its other passages are left out of
    the mean: they have no score, and 0 would be no low score, because sums of similarities have no fixed zero. So a hit
    keeps its score if it has no parent, or is the only hit in its section.
    """

    system: str = "QSF sectionPropagateAVG"
    """The run's name in every table. The pipeline sets it."""
    measure: Measure = "RR@10"
    """The first of `evaluate.measures`. The pipeline sets it."""
    depth: PositiveInt = 1000
    """Hits that the re-ranker has scored; later hits stay below them. The pipeline sets it."""
    propagation_weights: Annotated[tuple[Fraction, ...], Field(min_length=1)] = tuple(i / 10 for i in range(1, 10))
    """Values of μ: the first that is best on dev queries is taken, and without labelled dev queries the middle one. 0
    is not among them, because with it the system is the re-ranker itself."""


class WeighReranker(StepSettings):
    """Sums the scores of a first stage and of a re-ranker: s = (1 − w) · first stage + w · re-ranker.

    Both are min-max normalised over the hits of a query that are re-ranked. These are the same in a run and in a
    search, so a bundle answers as its run ranked.
    """

    measure: Measure = "RR@10"
    """The measure that chooses w on dev: the first of `evaluate.measures`. The pipeline sets it."""
    depth: PositiveInt = 100
    """Hits that the re-ranker orders. The pipeline sets it."""
    reranker_weights: Annotated[tuple[Fraction, ...], Field(min_length=1)] = tuple(i / 20 for i in range(21))
    """Values of w: the first that is best on dev queries is taken, and without labelled dev queries the middle one. 0
    has to be the first of them, so that the chosen weight's mean on dev is not below the first stage's, which a tie
    leaves as it is."""
    reranker: Literal["cross_encoder", "bert_dmn", "colbert"] = "cross_encoder"
    """The re-ranker of a ladder's last rung, trained with the settings of `train_reranker`."""
    above: Literal["training", "labels"] = "training"
    """The rung whose recommended bundle a ladder re-ranks. `labels`: no retriever is trained."""

    def _problems(self) -> Iterator[str]:
        if self.reranker_weights[0] != 0:
            yield "reranker_weights: 0, the first stage alone, has to be the first of them"


class CompareRerankers(Inference):
    """Reports a study of re-rankers."""

    systems: Annotated[tuple[str, ...], Field(min_length=1)] = ("cross_encoder", "bert_dmn", "colbert")
    """What `gnn-encoder rerank` trains and compares without `--systems`; the last is the headline's."""
    study: str = ""
    """A study's name. The pipeline sets it."""
    depth: PositiveInt = 100
    """Hits that a cross-encoder re-ranks. The pipeline sets it."""
    diffusion_pairs: PositiveInt = 2000
    """Pairs of a query and one of its first `depth` hits, drawn to compare an encoder's outputs. BERT-DMN 6.2 has
    20,000; 2,000 pairs of 100 tokens have ten million cosines."""
    seed: Count = 0
    """Of the randomization test, of the bootstrap, and of the draw of pairs."""

    def _problems(self) -> Iterator[str]:
        for name in self.systems:
            if name not in ALL_SYSTEMS:
                yield f"systems: unknown system {name!r}: {known_names(name, SYSTEMS)}"


_OF_PUBLISHED = {"kind", "lite", "published", "train_published", "titles", "precision", "dev_queries", "seed"}
"""Settings of a re-ranker that is not trained; the last three are for its figures on dev."""
_OWN: dict[str, tuple[RerankerKind, ...]] = {
    **dict.fromkeys(("learning_rate", "dropout"), (*PAIR_KINDS, *LATE_KINDS)),
    "pair_length": (*PAIR_KINDS, *WORD_KINDS),
    **dict.fromkeys(Published.model_fields, ("cross_encoder", "colbert")),
    **dict.fromkeys(("memory_width", "episodes", "memory_dropout", "shared_episodes"), ("bert_dmn", "dmn")),
    **dict.fromkeys(("bidirectional", "memory_includes_question", "split_sentences"), ("bert_dmn", "dmn")),
    **dict.fromkeys(("token_width", "query_length", "passage_length"), LATE_KINDS),
    **dict.fromkeys(("expand_queries", "titles", "in_batch_negatives"), LATE_KINDS),
    **dict.fromkeys(("word_vectors", "train_word_vectors", "vocabulary", "word_width", "word_epochs"), WORD_KINDS),
    **dict.fromkeys(("lstm_width", "lstm_pooling", "lstm_dropout"), ("qa_lstm",)),
    **dict.fromkeys(("kernels", "kernel_width", "exact_kernel_width", "feature_scale"), ("k_nrm",)),
    **dict.fromkeys(DocumentNetwork.model_fields, DOCUMENT_KINDS),
    "context_asks": ("lim",),
    "context_weight": ("lim", "mix_im"),
    **dict.fromkeys(("depth", "token_vectors", "systems"), ()),
}
"""Setting → the kinds that depend on it; a setting without an entry is every kind's."""
