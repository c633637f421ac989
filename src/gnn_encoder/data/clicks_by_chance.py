"""How many clicks chance explains, and how often users look at a position.

By chance, clicks are Poisson with the mean

    with views      v · max(rate of the query's other passages, rate of other queries)      rate = clicks / views
    without views   clicks of the query · share of the passage in the clicks of other queries

where v are the pair's views. So a passage that is clicked whatever was asked, and a query whose hits are all clicked
alike, give no label.

With positions, views count as much as users look at their position: v = Σ_k p_k · views at k (the position-based model,
inverse propensity weighting: Joachims, Swaminathan and Schnabel, WSDM 2017). The propensities p_k come from the log
itself: passages that one query showed at several positions are an experiment (intervention harvesting: Agarwal and
others, WSDM 2019). Here p is their maximum likelihood under that model with Poisson clicks.
"""

import numpy as np

from gnn_encoder.artifacts.tables import pair_keys

ROUNDS, CHANGE = 1000, 1e-7
"""Most rounds in which propensities are fitted, and the relative change at which the fit ends."""


def by_chance(query: np.ndarray, passage: np.ndarray, clicks: np.ndarray, views: np.ndarray | None) -> np.ndarray:
    """Returns the probability [r] of at least so many clicks by chance, of distinct pairs [r], as the module says.

    Args:
        views: [r] how often users looked at the passage; None: unknown.
    """
    from scipy.special import gammainc

    of_query = np.bincount(query, clicks)[query]
    if views is None:
        expected = of_query * _rate(np.bincount(passage, clicks)[passage] - clicks, clicks.sum() - of_query)
    else:
        views_of_query = np.bincount(query, views)[query]
        within = _rate(of_query - clicks, views_of_query - views)
        others = _rate(clicks.sum() - of_query, views.sum() - views_of_query)
        expected = views * np.maximum(within, others)
    # The regularized gamma function P(c, m) is the probability of c or more events of a Poisson variable of mean m.
    return np.where(clicks > 0, gammainc(np.maximum(clicks, 1), expected), 1.0)


def propensities(pair: np.ndarray, position: np.ndarray, clicks: np.ndarray, views: np.ndarray) -> np.ndarray:
    """Returns the probability p_k that users look at position k, relative to the first position that is known.

    The maximum likelihood of clicks ~ Poisson(views · p_k · r_pair), by turns for p and r. Only pairs that were shown
    at several positions say something about p.

    Args:
        pair: [r] number of the row's query and passage, from 0.
        position: [r] from 1.

    Returns:
        [k + 1], entry 0 unused; NaN: unknown, because no passage links the position with those that have most views, or
        none was clicked there.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(position.max(initial=0)) + 1
    p = np.full(size, np.nan)
    shown = np.unique(pair_keys(pair, position))
    moved = np.bincount(shown >> 32, minlength=int(pair.max(initial=0)) + 1) > 1
    rows = moved[pair] & (views > 0)
    if not rows.any():
        return p
    pair, position, clicks, views = pair[rows], position[rows], clicks[rows], views[rows]
    pair = np.unique(pair, return_inverse=True)[1]
    links = coo_array((np.ones(len(pair)), (position, size + pair)), shape=(size + pair.max() + 1,) * 2)
    part = connected_components(links, directed=False)[1][position]
    rows = part == np.bincount(part, views).argmax()
    pair, position, clicks, views = pair[rows], position[rows], clicks[rows], views[rows]
    of_pair, of_position = np.bincount(pair, clicks), np.bincount(position, clicks, minlength=size)
    fitted = np.ones(size)
    for _ in range(ROUNDS):
        relevance = _rate(of_pair, np.bincount(pair, views * fitted[position]))
        latest = _rate(of_position, np.bincount(position, views * relevance[pair], minlength=size))
        latest /= max(latest.max(), 1e-300)
        done = np.abs(latest - fitted).max() < CHANGE
        fitted = latest
        if done:
            break
    known = fitted > 0
    if known.any():
        p[known] = fitted[known] / fitted[np.flatnonzero(known)[0]]
    return p


def _rate(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Returns part / whole, and 0 where nothing is whole; rounding may leave less than nothing of a difference."""
    rate: np.ndarray = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 1e-9)
    return rate.clip(0)
