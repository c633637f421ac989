"""Sizes a run to a budget: from facts of the data and rates of the machine to settings, with the reasons.

Every cost is a number of tokens that a model reads, divided by a measured rate; the constants below are the rest. The
learning rates are those that the presets of `obliqa` and `scifact` chose on dev. What can be chosen on the data's own
dev queries is left to the run: the dual encoder's epochs, the graph and the GNN's training (`choose_graph`), the
weights of labels and of BM25, and the system that is recommended.

Where a budget is too small for all training queries, a draw of them is trained on. The labels of the others cost little
and stay: in the systems that use labels without training, in the strata, and in the graph if that fits.
"""

from dataclasses import dataclass, replace
from typing import Any

from gnn_encoder.errors import UserError
from gnn_encoder.planning.facts import DataFacts
from gnn_encoder.planning.rates import DROPOUT, Rates
from gnn_encoder.training.dev import CANDIDATES as DEV_CANDIDATES

LENGTHS = (256, 192, 160, 128, 96, 64)
"""Tokens to which passages may be cut."""
RESERVE = 0.85
"""Share of the budget that the estimate may fill: the machine's speed varies."""
LEAST, SHORT = 0.6, 128
"""Passages are cut shorter, to no less than `SHORT` tokens, until the least run, one epoch each, takes at most this
share: more epochs gain more."""
FEWEST = 300
"""Training queries that are trained on, below which the number is not reduced."""
MOST_EPOCHS, MOST_GNN_EPOCHS, PATIENCE = 20, 3, 3
STARTS = 80.0
"""Seconds for the measuring of the machine, the starts of all steps, the query generator, and for BM25, rankings,
evaluation and report of a small data set."""
ENCODINGS = ("dense_retrieve", "build_graph")
"""Calls that encode the corpus, in windows if passages are read so, and all queries: by DPR and by M_de. The rung as it
is has done so before. `RESERVE` has to be enough for a run that recommends DPR and encodes it once more."""
POOL, CANDIDATES, NEIGHBORS, QUERIES_OF_PASSAGE, DEV_QUERIES = 1000, 8, 10, 3, 60
MISSED = 0.5
"""Share of the labels whose passage is not among the candidates; these pairs are scored, too. It was 0.8 with passages
of 16 words."""
UNSCORED = 0.6
"""Share of the edges of retrieval whose pairs have no scores yet: 0.38 on `medquad`, 0.45 on `scifact`, 0.7 on
`obliqa`."""
TRIAL_SECONDS, TRIAL_PER_PASSAGE = 0.0005, 8e-6
"""Seconds for each example, epoch and variant with frozen encoders, as `obliqa` and `medquad` took, and for each
passage and variant, as a million passages took."""
PER_PASSAGE = 0.00033
"""Seconds for each passage in steps that do not encode it: BM25 indexes, bundles, propagation, rankings."""
PER_QUERY = 0.02
"""Seconds for each dev and test query: the rankings, fusions and measures of all systems. Two cores of an AMD EPYC
took half of these seconds and `STARTS` on `scifact`, three quarters on `obliqa`: a margin for slower machines."""
SCORING_SHARE = 0.08
"""Edges of retrieval without scores cost the cross-encoder a pair each. They are tried if that takes at most this share
of a run. The same holds for edges of labels whose queries are not trained on, and for the time of all uses of these
labels."""
PER_NODE = 0.00006
"""Seconds for each propagation of a query with few edges: before and after a trial, after each epoch, at the end."""
PER_LABEL, PER_LABEL_OF_FEW = 0.002, 0.0004
"""Seconds for each label in the choice among all uses of labels (`encode_with_labels`), and among `FEW_USES`; clusters
take most."""
SPREAD = ""
"""In the place of a call: seconds that many calls share."""
OTHER_LABELS = "labels of the queries that are not trained on"
"""Part of the estimated time."""
FEW_USES = {"sum_weights": [0.0, 0.1, 0.3], "cluster_weights": [0.0, 0.1, 0.3], "clusters": [4]}
REPEATED = 0.02
"""Share of the training labels on a passage with several training queries, from which labelled edges are tried: with a
query masked, its passages have no other neighbour else."""

LABELLED: dict[str, dict[str, Any]] = {
    "labelled edges, one layer, open gate": {
        "train_gnn.layers": 1, "train_gnn.gate_bias": 2.0, "train_gnn.hard_negatives": "selected",
    },
    "labelled edges, one layer": {"train_gnn.layers": 1, "train_gnn.gate_bias": 0.0},
    "labelled edges, two layers": {"train_gnn.layers": 2, "train_gnn.gate_bias": -1.0},
    "labelled edges, two layers, open gate": {"train_gnn.layers": 2, "train_gnn.gate_bias": 1.0},
}  # fmt: skip
BOTH: dict[str, dict[str, Any]] = {
    "labelled and retrieved edges": {"build_graph.edges": "retrieved+labelled", "train_gnn.gate_bias": -1.0},
}
RETRIEVED: dict[str, dict[str, Any]] = {
    "retrieved edges, one layer": {
        "build_graph.edges": "retrieved", "train_gnn.layers": 1, "train_gnn.gate_bias": -2.0,
        "train_gnn.hard_negatives": "selected",
    },
    "retrieved edges": {
        "build_graph.edges": "retrieved", "train_gnn.gate_bias": -2.0, "train_gnn.hard_negatives": "selected",
    },
}  # fmt: skip
"""Variant of `choose_graph` → its settings, the simplest first."""


class DoesNotFit(UserError):
    """No training fits the budget. `needed`: the seconds of a budget that the least one fits; None: nothing does."""

    def __init__(self, message: str, needed: float | None = None) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class Plan:
    """Settings as in a preset, the estimated seconds of each part, and the reasons in lines for people."""

    settings: dict[str, dict[str, Any]]
    seconds: dict[str, float]
    reasons: dict[str, str]
    calls: dict[str, float]
    """Title of a call → its estimated seconds, of the calls that encode the corpus, score or train."""


def pair_length(length: int) -> int:
    """Returns the tokens to which a query and a passage, which is itself cut to `length`, are cut together."""
    return min(160, length)


@dataclass(frozen=True)
class _Sized:
    """A run of one size on the data and the machine: what it costs, in seconds, and what that decides."""

    facts: DataFacts
    rates: Rates
    budget: float
    length: int
    queries: int
    """Training queries that are trained on."""
    epochs: int = 1
    gnn_epochs: int = 1

    @property
    def query_length(self) -> int:
        """Tokens to which queries are cut: those of 99 in 100, in steps of 16."""
        tokens = self.facts.query_tokens
        long = int(tokens[int(0.99 * (len(tokens) - 1))])
        return min(128, max(16, -(-long // 16) * 16))

    @property
    def query(self) -> float:
        """Mean tokens of a query."""
        return self.facts.mean_query(self.query_length)

    @property
    def passage(self) -> float:
        """Mean tokens of a passage."""
        return self.facts.mean_passage(self.length)

    @property
    def pair(self) -> float:
        """Mean tokens of a query with a passage."""
        return self.facts.mean_pair(self.query, pair_length(self.length))

    @property
    def labelled_pair(self) -> float:
        """Mean tokens of a query with a passage that is relevant to it."""
        return self.facts.mean_pair(self.query, pair_length(self.length), labelled=True)

    @property
    def examples(self) -> float:
        """Labels that are trained on."""
        return self.facts.labels * self.queries / self.facts.queries["train"]

    @property
    def others(self) -> int:
        """Training queries that are not trained on."""
        return self.facts.queries["train"] - self.queries

    @property
    def other_labels(self) -> float:
        """Labels of the training queries that are not trained on."""
        return self.facts.labels * self.others / self.facts.queries["train"]

    @property
    def epoch(self) -> float:
        """Of the dual encoder: a query, its passage and a hard negative, and the dev pool."""
        tokens = self.query + self.facts.mean_labelled(self.length) + self.passage
        training = self.examples * tokens / self.rates.training
        return training + min(POOL, self.facts.passages) * self.passage / self.rates.encoding

    @property
    def retrieved_edges(self) -> float:
        """A pair for each edge of retrieval that has no scores yet."""
        return UNSCORED * self.queries * NEIGHBORS * self.pair / self.rates.encoding

    @property
    def scores_edges(self) -> bool:
        """Whether edges of retrieval are tried."""
        return self.retrieved_edges <= SCORING_SHARE * self.budget or self.facts.shared < REPEATED

    @property
    def few_uses(self) -> bool:
        """Whether few uses of labels are tried."""
        return self.other_labels * PER_LABEL > SCORING_SHARE * self.budget

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """Variants of `choose_graph`."""
        variants = LABELLED if self.facts.shared >= REPEATED else {}
        if self.scores_edges:
            variants = {**variants, **(BOTH if variants else {}), **RETRIEVED}
        return variants

    @property
    def others_in_graph(self) -> float:
        """The other queries as nodes: their vectors, a pair for each label, and the propagations."""
        propagations = len(self.variants) * (self.gnn_epochs + 1) + self.gnn_epochs + 2
        vectors = (2 + self.gnn_epochs) * self.query / self.rates.encoding
        scores = self.other_labels * self.labelled_pair / self.rates.encoding
        return self.others * (vectors + propagations * PER_NODE) + scores

    @property
    def holds_all(self) -> bool:
        """Whether all training queries are nodes of the graph. Without labelled edges the others would have none."""
        return self.facts.shared >= REPEATED and self.others_in_graph <= SCORING_SHARE * self.budget

    @property
    def neighbours_of_passage(self) -> float:
        """Mean number of queries next to a passage that the GNN's training encodes, too.

        Where edges of labels and of retrieval are tried, the kind with more neighbours counts.
        """
        of_labels = QUERIES_OF_PASSAGE * self.facts.shared if self.facts.shared >= REPEATED else 0.0
        retrieved = self.queries * NEIGHBORS / self.facts.passages if self.scores_edges else 0.0
        return max(of_labels, min(QUERIES_OF_PASSAGE, retrieved))

    def parts(self) -> dict[str, dict[str, float]]:
        """Part of a run → title of a call → the call's seconds in that part."""
        facts, rates = self.facts, self.rates
        neighbours = 2 * self.examples * self.neighbours_of_passage * self.query / rates.training
        trial = self.gnn_epochs * self.examples * TRIAL_SECONDS + facts.passages * TRIAL_PER_PASSAGE
        whole = facts.passages * facts.mean_read(self.length) + (self.queries + facts.measured) * self.query
        others = self.others * self.query / rates.encoding
        others += self.other_labels * (PER_LABEL_OF_FEW if self.few_uses else PER_LABEL)
        others += self.others_in_graph if self.holds_all else 0.0
        return {
            "starts, BM25 and evaluation": {SPREAD: STARTS + PER_PASSAGE * facts.passages + PER_QUERY * facts.measured},
            "encoding the corpus": {
                **dict.fromkeys(ENCODINGS, whole / rates.encoding),
                "encode_nodes": (facts.passages * self.passage + self.queries * self.query) / rates.encoding,
            },
            "the dual encoder": {"train_dpr": self.epoch, "train_dual_encoder": self.epochs * self.epoch},
            "the cross-encoder and its scores": {
                "train_cross_encoder": self.examples * (self.labelled_pair + self.pair) / rates.training
                + 2 * DEV_CANDIDATES * min(DEV_QUERIES, facts.queries["dev"]) * self.pair / rates.encoding,
                "score_candidates": (
                    self.queries * CANDIDATES * self.pair + MISSED * self.examples * self.labelled_pair
                )
                / rates.encoding,
            },
            "trying graphs": {
                "build_graph": self.retrieved_edges if self.scores_edges else 0.0,
                "choose_graph": len(self.variants) * trial,
            },
            "the GNN-encoder": {"train_gnn": self.gnn_epochs * (self.epoch + neighbours)},
            **({OTHER_LABELS: {SPREAD: others}} if self.others > 0 else {}),
        }

    def seconds(self) -> dict[str, float]:
        """Part of a run → its seconds."""
        return {part: sum(calls.values()) for part, calls in self.parts().items()}

    def total(self) -> float:
        """Seconds of the run."""
        return sum(self.seconds().values())


def plan_run(facts: DataFacts, rates: Rates, budget: float, backbone: str) -> Plan:
    """Returns the plan of a run within `budget` seconds.

    Raises:
        DoesNotFit: no training query has a label, or the least run does not fit.
    """
    if not facts.queries["train"]:
        raise DoesNotFit("the data have no labelled training query: a retriever has nothing to train on")
    usable = RESERVE * budget
    size = _least(facts, rates, budget)
    left = usable - size.total()
    epochs = min(MOST_EPOCHS, 1 + int(0.6 * left / size.epoch)) if facts.queries["dev"] else 1
    for gnn_epochs in range(MOST_GNN_EPOCHS, 0, -1):
        size = replace(size, epochs=epochs, gnn_epochs=gnn_epochs)
        if size.total() <= usable:
            break
    calls: dict[str, float] = {}
    for part in size.parts().values():
        for title, spent in part.items():
            calls[title] = calls.get(title, 0.0) + spent
    del calls[SPREAD]
    return Plan(_settings(size, backbone), size.seconds(), _reasons(size), calls)


def _least(facts: DataFacts, rates: Rates, budget: float) -> _Sized:
    """The longest passages and most queries to train on with which one epoch each fits."""
    train = facts.drawn or facts.queries["train"]
    fewest = facts.drawn or min(train, FEWEST)  # the user's own number is not reduced
    lengths = [length for length in LENGTHS if facts.mean_passage(length) < facts.mean_passage(LENGTHS[0])]
    lengths = [LENGTHS[0], *lengths] if facts.mean_passage(LENGTHS[0]) > facts.mean_passage(LENGTHS[1]) else lengths
    lengths = lengths or [LENGTHS[-1]]
    for share, possible in ((LEAST, [n for n in lengths if n >= SHORT]), (1.0, [n for n in lengths if n <= SHORT])):
        for length in possible:
            if (size := _Sized(facts, rates, budget, length, train)).total() <= share * RESERVE * budget:
                return size
    least = _Sized(facts, rates, budget, LENGTHS[-1], fewest)
    if (needed := least.total()) > RESERVE * budget:
        without_others = needed - least.seconds().get(OTHER_LABELS, 0.0)
        limit = "" if without_others > RESERVE * budget else ", a limit ingest.max_train_queries"
        raise DoesNotFit(
            f"{facts.passages:,} passages and {facts.measured:,} dev and test queries need about "
            f"{needed / RESERVE / 60:,.0f} minutes on {rates.machine}, with passages cut to {least.length} tokens: "
            f"give a larger --budget, a GPU{limit}, or a preset",
            needed / RESERVE,
        )
    low, high = fewest, train
    while high - low > 1:
        middle = (low + high) // 2
        fits = replace(least, queries=middle).total() <= RESERVE * budget
        low, high = (middle, high) if fits else (low, middle)
    return replace(least, queries=low)


def _settings(size: _Sized, backbone: str) -> dict[str, dict[str, Any]]:
    # DPR counts as epoch 0: an epoch with poor negatives can make it worse.
    patient = {"keep": "best", "patience": PATIENCE} if size.facts.queries["dev"] else {}
    patient |= {"schedule": "constant"} if size.epochs > 1 else {}
    once = {"epochs": 1, "batch_size": 32, "learning_rate": 3e-5, "dev_pool": POOL}
    capped = {"max_trained_queries": size.queries} if size.others > 0 else {}
    nodes = {"queries": "trained"} if capped and not size.holds_all else {}
    return {
        "shared": {
            "negative_below": 0.2, "backbone": backbone, "generator": backbone, "query_length": size.query_length,
            "passage_length": size.length, "dropout": DROPOUT,
        },
        "ingest": capped,
        "train_dpr": once,
        "dense_retrieve": {"train_depth": 50},
        "train_cross_encoder": {
            "epochs": 1, "batch_size": 32, "negatives": 1, "negative_depth": 30, "learning_rate": 2e-4,
            "pair_length": pair_length(size.length), "dev_queries": DEV_QUERIES,
        },
        "score_candidates": {"candidates": CANDIDATES},
        "train_query_generator": {
            "epochs": 1, "batch_size": 16, "learning_rate": 2e-4, "passage_length": 64, "query_length": 20,
            "max_pairs": 240, "rouge_pairs": 40,
        },
        "generate_queries": {"negatives_per_query": 1, "max_passages": 150},
        "select_training_set": {"positive_above": 0.95, "augmentation": False, "selection_mix": "once"},
        "train_dual_encoder": {**once, "start_from": "dpr", "epochs": size.epochs, **patient},
        "train_converged": {"epochs": 0},
        "build_graph": {"neighbors": NEIGHBORS, "edges": "labelled", "retrieved": 25, **nodes},
        **({"encode_with_labels": FEW_USES} if size.few_uses else {}),
        "train_gnn": {
            "epochs": size.gnn_epochs, "batch_size": 32, "learning_rate": 3e-6 / size.gnn_epochs,
            "gnn_learning_rate": 1e-3, "start": "mean", "hard_negatives": "retrieved",
            "max_queries_per_passage": QUERIES_OF_PASSAGE, "dev_pool": POOL,
        },
        "choose_graph": {"variants": size.variants},
    }  # fmt: skip


def _reasons(size: _Sized) -> dict[str, str]:
    facts = size.facts
    longer = float((facts.passage_tokens > size.length).mean())
    stop = "one epoch, or none if dev is better without"
    if size.epochs > 1:
        stop = f"until {PATIENCE} epochs gain nothing on dev, at most {size.epochs}"
    edges, drawn = "labelled and retrieved edges" if size.scores_edges else "labelled edges", ""
    if facts.shared < REPEATED:
        edges = "retrieved edges: hardly a passage has two training queries"
    if size.others > 0:
        why = "as the settings say" if size.queries == facts.drawn else "which is what fits"
        drawn = f"; on {size.queries:,} queries, {why}"
        if facts.shared >= REPEATED:
            edges += f"; it holds {'all labels' if size.holds_all else 'the labels of the queries trained on'}"
    seconds = size.seconds()
    return {
        "passages": f"cut to {size.length} tokens; {100 * longer:.0f} % are longer",
        "training": f"the dual encoder {stop}; the GNN-encoder {size.gnn_epochs} epoch{'s' * (size.gnn_epochs > 1)}"
        + drawn,
        "graph": f"{len(size.variants)} variants tried on dev, with {edges}",
        "time": f"about {sum(seconds.values()) / 60:.0f} of {size.budget / 60:.0f} minutes: "
        + ", ".join(f"{name} {spent / 60:.1f}" for name, spent in seconds.items()),
    }
