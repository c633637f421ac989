"""The rungs of the ladder, in the order of their cost (`pipelines.ladder`)."""

from gnn_encoder.errors import UserError
from gnn_encoder.settings.values import known_names

WORDS, AS_IT_IS, LABELS, TRAINING, RERANKING = RUNGS = ("words", "as it is", "labels", "training", "re-ranking")
NAMES = {rung.replace(" ", "-"): rung for rung in RUNGS}
"""A rung as `--until` names it → the rung."""


def height(rung: str) -> int:
    """Returns the number of a rung from the lowest, 0; -1 for what is no rung."""
    return RUNGS.index(rung) if rung in RUNGS else -1


def rung_named(name: str) -> str:
    """Returns the rung that `--until` names; a UserError if there is none."""
    if name not in NAMES:
        raise UserError(f"--until {name}: {known_names(name, NAMES)}")
    return NAMES[name]
