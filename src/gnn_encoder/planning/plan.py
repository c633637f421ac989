"""Sizes a run to a budget: from facts of the data and rates of the machine to settings, with the reasons.

Every cost is a number of tokens that a model reads, divided by a measured rate; the constants below are the rest. The
learning rates are those that the presets of `obliqa` and `scifact` chose on dev. What can be chosen on the data's own
dev queries is left to the run: the dual encoder's epochs, the graph and the GNN's training (`choose_graph`), the
weights of labels and of BM25, and the system that is recommended.

Where a budget is too small for all training queries, a draw of them is trained on. The labels of the others cost little
and stay: in the systems that use labels without training, in the strata, and in the graph if that fits.
"""

from dataclasses import dataclass
from typing import Any

from gnn_encoder.errors import UserError
from gnn_encoder.planning.facts import DataFacts
from gnn_encoder.planning.rates import DROPOUT, Rates
from gnn_encoder.settings.systems import UNTRAINED

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
STARTS = 120.0
"""Seconds for the measuring of the machine, the starts of all steps, the query generator, and for BM25, rankings,
evaluation and report of a small data set."""
ENCODINGS = (f"rank: {UNTRAINED}", "dense_retrieve", "build_graph")
"""Calls that encode the corpus, in windows if passages are read so: untrained, by DPR and by M_de. `RESERVE` has to be
enough for a run that recommends DPR and encodes it once more."""
POOL, CANDIDATES, NEIGHBORS, QUERIES_OF_PASSAGE = 1000, 8, 10, 3
TRIAL_SECONDS = 0.004
"""Seconds for each example, epoch and variant with frozen encoders."""
PER_PASSAGE = 0.002
"""Seconds for each passage in steps that do not encode it: BM25 indexes, bundles, propagation, rankings."""
PER_QUERY = 0.07
"""Seconds for each dev and test query: BM25's search, and the rankings, fusions and measures of all systems, as on
`obliqa` with two cores."""
SCORING_SHARE = 0.08
"""Edges of retrieval cost the cross-encoder a pair each; they are tried if that takes at most this share of a run. The
same holds for edges of labels whose queries are not trained on, and for the time of all uses of these labels."""
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


@dataclass(frozen=True)
class _Size:
    """What a budget can change."""

    length: int
    queries: int
    """Training queries that are trained on."""
    epochs: int = 1
    gnn_epochs: int = 1


def plan_run(facts: DataFacts, rates: Rates, budget: float, backbone: str) -> Plan:
    """Returns the plan of a run within `budget` seconds.

    Raises:
        DoesNotFit: no training query has a label, or the least run does not fit.
    """
    if not facts.queries["train"]:
        raise DoesNotFit("the data have no labelled training query: a retriever has nothing to train on")
    usable = RESERVE * budget
    size = _least(facts, rates, budget)
    left = usable - sum(_seconds(facts, rates, size, budget).values())
    dev = facts.queries["dev"] > 0
    one = _epoch(facts, rates, size)
    epochs = min(MOST_EPOCHS, 1 + int(0.6 * left / one)) if dev else 1
    for gnn_epochs in range(MOST_GNN_EPOCHS, 0, -1):
        size = _Size(size.length, size.queries, epochs, gnn_epochs)
        seconds = _seconds(facts, rates, size, budget)
        if sum(seconds.values()) <= usable:
            break
    reasons = _reasons(facts, rates, size, seconds, budget)
    return Plan(_settings(facts, size, budget, rates, backbone), seconds, reasons, _calls(facts, rates, size, budget))


def _least(facts: DataFacts, rates: Rates, budget: float) -> _Size:
    """The longest passages and most queries to train on with which one epoch each fits."""
    train = facts.drawn or facts.queries["train"]
    fewest = facts.drawn or min(train, FEWEST)  # the user's own number is not reduced
    lengths = [length for length in LENGTHS if facts.mean_passage(length) < facts.mean_passage(LENGTHS[0])]
    lengths = [LENGTHS[0], *lengths] if facts.mean_passage(LENGTHS[0]) > facts.mean_passage(LENGTHS[1]) else lengths
    lengths = lengths or [LENGTHS[-1]]
    for share, possible in ((LEAST, [n for n in lengths if n >= SHORT]), (1.0, [n for n in lengths if n <= SHORT])):
        for length in possible:
            if sum(_seconds(facts, rates, _Size(length, train), budget).values()) <= share * RESERVE * budget:
                return _Size(length, train)
    shortest = LENGTHS[-1]
    least = _seconds(facts, rates, _Size(shortest, fewest), budget)
    needed = sum(least.values())
    if needed > RESERVE * budget:
        limit = "" if needed - least.get(OTHER_LABELS, 0.0) > RESERVE * budget else ", a limit ingest.max_train_queries"
        raise DoesNotFit(
            f"{facts.passages:,} passages and {_asked(facts):,} dev and test queries need about "
            f"{needed / RESERVE / 60:,.0f} minutes on {rates.machine}, with passages cut to {shortest} tokens: give a "
            f"larger --budget, a GPU{limit}, or a preset",
            needed / RESERVE,
        )
    low, high = fewest, train
    while high - low > 1:
        middle = (low + high) // 2
        fits = sum(_seconds(facts, rates, _Size(shortest, middle), budget).values()) <= RESERVE * budget
        low, high = (middle, high) if fits else (low, middle)
    return _Size(shortest, low)


def _epoch(facts: DataFacts, rates: Rates, size: _Size) -> float:
    """Seconds of one epoch of the dual encoder: a query, its passage and a hard negative, and the dev pool."""
    query, passage = facts.mean_query(_query_length(facts)), facts.mean_passage(size.length)
    examples = facts.labels * size.queries / facts.queries["train"]
    return examples * (query + 2 * passage) / rates.training + min(POOL, facts.passages) * passage / rates.encoding


def _gnn_epoch(facts: DataFacts, rates: Rates, size: _Size) -> float:
    """As `_epoch`, with the passages' neighbour queries."""
    query, examples = facts.mean_query(_query_length(facts)), facts.labels * size.queries / facts.queries["train"]
    return _epoch(facts, rates, size) + examples * 2 * QUERIES_OF_PASSAGE * query / rates.training


def _parts(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> dict[str, dict[str, float]]:
    """Part of a run → title of a call → the call's seconds in that part."""
    query, passage = facts.mean_query(_query_length(facts)), facts.mean_passage(size.length)
    examples = facts.labels * size.queries / facts.queries["train"]
    pair = min(query + passage, pair_length(size.length))
    tried = len(_variants(facts, rates, size, budget))
    edges = size.queries * NEIGHBORS * pair / rates.encoding if _scores_edges(facts, rates, size, budget) else 0.0
    others = _other_labels(facts, rates, size, budget) if size.queries < facts.queries["train"] else 0.0
    epoch = _epoch(facts, rates, size)
    return {
        "starts, BM25 and evaluation": {SPREAD: STARTS + PER_PASSAGE * facts.passages + PER_QUERY * _asked(facts)},
        "encoding the corpus": {
            **dict.fromkeys(ENCODINGS, facts.passages * facts.mean_read(size.length) / rates.encoding),
            "encode_nodes": facts.passages * passage / rates.encoding,
        },
        "the dual encoder": {"train_dpr": epoch, "train_dual_encoder": size.epochs * epoch},
        "the cross-encoder and its scores": {
            "train_cross_encoder": 2 * examples * pair / rates.training,
            "score_candidates": size.queries * CANDIDATES * pair / rates.encoding,
        },
        "trying graphs": {
            "build_graph": edges,
            "choose_graph": tried * size.gnn_epochs * examples * TRIAL_SECONDS,
        },
        "the GNN-encoder": {"train_gnn": size.gnn_epochs * _gnn_epoch(facts, rates, size)},
        **({OTHER_LABELS: {SPREAD: others}} if others else {}),
    }


def _seconds(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> dict[str, float]:
    return {part: sum(calls.values()) for part, calls in _parts(facts, rates, size, budget).items()}


def _calls(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for calls in _parts(facts, rates, size, budget).values():
        for title, spent in calls.items():
            seconds[title] = seconds.get(title, 0.0) + spent
    del seconds[SPREAD]
    return seconds


def _other_labels(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> float:
    """Seconds for the labels of the queries that are not trained on: in the uses of labels, and in the graph."""
    others, labels = _others(facts, size)
    per_label = PER_LABEL_OF_FEW if _few_uses(facts, size, budget) else PER_LABEL
    encoding = others * facts.mean_query(_query_length(facts)) / rates.encoding
    in_graph = _in_graph(facts, rates, size, budget) if _holds_all(facts, rates, size, budget) else 0.0
    return encoding + labels * per_label + in_graph


def _others(facts: DataFacts, size: _Size) -> tuple[int, float]:
    """Training queries that are not trained on, and their labels."""
    others = facts.queries["train"] - size.queries
    return others, facts.labels * others / facts.queries["train"]


def _in_graph(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> float:
    """Seconds for the other queries as nodes: their vectors, a pair for each label, and the propagations."""
    (others, labels), query = _others(facts, size), facts.mean_query(_query_length(facts))
    pair = min(query + facts.mean_passage(size.length), pair_length(size.length))
    propagations = len(_variants(facts, rates, size, budget)) * (size.gnn_epochs + 1) + size.gnn_epochs + 2
    vectors = (2 + size.gnn_epochs) * query / rates.encoding
    return others * (vectors + propagations * PER_NODE) + labels * pair / rates.encoding


def _holds_all(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> bool:
    """Whether all training queries are nodes of the graph. Without labelled edges the others would have none."""
    return facts.shared >= REPEATED and _in_graph(facts, rates, size, budget) <= SCORING_SHARE * budget


def _few_uses(facts: DataFacts, size: _Size, budget: float) -> bool:
    return _others(facts, size)[1] * PER_LABEL > SCORING_SHARE * budget


def _scores_edges(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> bool:
    pair = min(facts.mean_query(_query_length(facts)) + facts.mean_passage(size.length), pair_length(size.length))
    cheap = size.queries * NEIGHBORS * pair / rates.encoding <= SCORING_SHARE * budget
    return cheap or facts.shared < REPEATED


def _variants(facts: DataFacts, rates: Rates, size: _Size, budget: float) -> dict[str, dict[str, Any]]:
    variants = LABELLED if facts.shared >= REPEATED else {}
    if _scores_edges(facts, rates, size, budget):
        variants = {**variants, **(BOTH if variants else {}), **RETRIEVED}
    return variants


def _asked(facts: DataFacts) -> int:
    """Number of dev and test queries."""
    return facts.queries["dev"] + facts.queries["test"]


def _query_length(facts: DataFacts) -> int:
    """Tokens to which queries are cut: those of 99 in 100, in steps of 16."""
    long = int(facts.query_tokens[int(0.99 * (len(facts.query_tokens) - 1))])
    return min(128, max(16, -(-long // 16) * 16))


def pair_length(length: int) -> int:
    """Returns the tokens to which a query and a passage, which is itself cut to `length`, are cut together."""
    return min(160, length)


def _settings(facts: DataFacts, size: _Size, budget: float, rates: Rates, backbone: str) -> dict[str, dict[str, Any]]:
    # DPR counts as epoch 0: an epoch with poor negatives can make it worse.
    patient = {"keep": "best", "patience": PATIENCE} if facts.queries["dev"] else {}
    patient |= {"schedule": "constant"} if size.epochs > 1 else {}
    once = {"epochs": 1, "batch_size": 32, "learning_rate": 3e-5, "dev_pool": POOL}
    capped = {"max_trained_queries": size.queries} if size.queries < facts.queries["train"] else {}
    nodes = {"queries": "trained"} if capped and not _holds_all(facts, rates, size, budget) else {}
    return {
        "shared": {
            "negative_below": 0.2, "backbone": backbone, "generator": backbone, "query_length": _query_length(facts),
            "passage_length": size.length, "dropout": DROPOUT,
        },
        "ingest": capped,
        "train_dpr": once,
        "dense_retrieve": {"train_depth": 50},
        "train_cross_encoder": {
            "epochs": 1, "batch_size": 32, "negatives": 1, "negative_depth": 30, "learning_rate": 2e-4,
            "pair_length": pair_length(size.length), "dev_queries": 60,
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
        **({"encode_with_labels": FEW_USES} if _few_uses(facts, size, budget) else {}),
        "train_gnn": {
            "epochs": size.gnn_epochs, "batch_size": 32, "learning_rate": 3e-6 / size.gnn_epochs,
            "gnn_learning_rate": 1e-3, "start": "mean", "hard_negatives": "retrieved",
            "max_queries_per_passage": QUERIES_OF_PASSAGE, "dev_pool": POOL,
        },
        "choose_graph": {"variants": _variants(facts, rates, size, budget)},
    }  # fmt: skip


def _reasons(facts: DataFacts, rates: Rates, size: _Size, seconds: dict[str, float], budget: float) -> dict[str, str]:
    train = facts.queries["train"]
    longer = float((facts.passage_tokens > size.length).mean())
    drawn = f", {size.queries:,} of them trained on, which is what fits" if size.queries < train else ""
    if size.queries == facts.drawn:
        drawn = f", {size.queries:,} of them trained on, as the settings say"
    stop = "one epoch, or none if dev is better without"
    if size.epochs > 1:
        stop = f"until {PATIENCE} epochs gain nothing on dev, at most {size.epochs}"
    edges = "labelled and retrieved edges" if _scores_edges(facts, rates, size, budget) else "labelled edges"
    if facts.shared < REPEATED:
        edges = "retrieved edges: hardly a passage has two training queries"
    if drawn and facts.shared >= REPEATED:
        held = "all labels" if _holds_all(facts, rates, size, budget) else "the labels of the queries trained on"
        edges += f"; it holds {held}"
    return {
        "machine": f"{rates.machine}; encodes {rates.encoding:,.0f} and trains {rates.training:,.0f} tokens a second",
        "data": f"{facts.passages:,} passages; labelled queries: {train:,} train{drawn}, {facts.queries['dev']:,} dev, "
        f"{facts.queries['test']:,} test; {100 * facts.warm:.0f} % of the dev queries are warm",
        "passages": f"cut to {size.length} tokens; {100 * longer:.0f} % are longer",
        "training": f"the dual encoder {stop}; the GNN-encoder {size.gnn_epochs} epoch{'s' * (size.gnn_epochs > 1)}",
        "graph": f"{len(_variants(facts, rates, size, budget))} variants tried on dev, with {edges}",
        "time": f"about {sum(seconds.values()) / 60:.0f} of {budget / 60:.0f} minutes: "
        + ", ".join(f"{name} {spent / 60:.1f}" for name, spent in seconds.items()),
    }
