"""The rungs of the ladder, in the order of their cost (`pipelines.ladder`), and the stages of a run."""

from gnn_encoder.errors import UserError
from gnn_encoder.settings.values import known_names

WORDS, AS_IT_IS, LABELS, TRAINING, RERANKING = RUNGS = ("words", "as it is", "labels", "training", "re-ranking")
NAMES = {rung.replace(" ", "-"): rung for rung in RUNGS}
"""A rung as `--until` names it → the rung."""
PREPARE, TRAIN, RERANK, UPDATE, DECIDE = "prepare", "train", "re-rank", "update", "decide"
STAGES = {
    PREPARE: "ingest",
    AS_IT_IS: "encode",
    LABELS: "make_parts",
    TRAIN: "train_dual_encoder",
    RERANK: "weigh_reranker",
    UPDATE: "encode_corpus",
    DECIDE: "recommend",
}
"""Stage of a run, for people who follow it → the step whose figure says the most about the stage. A graph's calls have
their stage from `Graph.begin`."""


def height(rung: str) -> int:
    """Returns the number of a rung from the lowest, 0; -1 for what is no rung."""
    return RUNGS.index(rung) if rung in RUNGS else -1


def rung_named(name: str) -> str:
    """Returns the rung that `--until` names; a UserError if there is none."""
    if name not in NAMES:
        raise UserError(f"--until {name}: {known_names(name, NAMES)}")
    return NAMES[name]
