"""The rungs of the ladder, in the order of their cost (`pipelines.ladder`)."""

WORDS, AS_IT_IS, LABELS, TRAINING, RERANKING = RUNGS = ("words", "as it is", "labels", "training", "re-ranking")


def height(rung: str) -> int:
    """Returns the number of a rung from the lowest, 0; -1 for what is no rung."""
    return RUNGS.index(rung) if rung in RUNGS else -1
