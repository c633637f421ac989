"""Learned fusion: a model of (query, passage) features that orders the candidates.

`trees` is LambdaMART (Burges, 2010) by LightGBM; `linear` is a logistic regression over standardised features. Features
of a training query come from parts that know neither its labels nor those of its fold. Where the training queries have
trained the encoder, the linear form is learnt from dev queries (`held_out`).

A feature can be held to raise scores only: a weight of at least 0, or trees that rise with it. What labels say of a
passage is (`parts.FROM_LABELS`). Otherwise a fusion learns how the data were split: where each passage answers one
query, no relevant passage of another query has a label, so a label would demote its passage.
"""

import ctypes
import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from gnn_encoder.errors import UserError
from gnn_encoder.machine.absent import absent

TREES, LINEAR, ALONE = "trees", "linear", "alone"
FACTS, MODEL = "fusion.json", "trees.txt"
DEPTH = 15
"""Ranks whose order counts in LambdaMART's gradients."""
IMPORTING = Lock()


class Fusion(Protocol):
    """Orders candidates by their features."""

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Returns the score fp32 [r] of features [r, f]."""

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """Returns what each feature adds to the scores, and the rest in the last column, fp32 [r, f + 1]."""

    def write(self, folder: Path, names: tuple[str, ...]) -> None:
        """Writes files that `read_fusion` reads, with the names of the features."""


@dataclass(frozen=True)
class Alone:
    """One feature as it is; a search then ranks all passages by its part."""

    feature: str
    column: int

    def scores(self, features: np.ndarray) -> np.ndarray:
        """See `Fusion`."""
        return np.asarray(features[:, self.column], np.float32)

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """See `Fusion`."""
        amounts = np.zeros((len(features), features.shape[1] + 1), np.float32)
        amounts[:, self.column] = features[:, self.column]
        return amounts

    def write(self, folder: Path, names: tuple[str, ...]) -> None:
        """See `Fusion`."""
        facts = {"form": ALONE, "features": names, "feature": self.feature}
        (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Linear:
    """A logistic regression; a score is its logit. `weights` [f] are for the features as they are."""

    weights: np.ndarray
    bias: float

    @classmethod
    def fit(
        cls, features: np.ndarray, relevant: np.ndarray, rising: np.ndarray | None = None, penalty: float = 1.0
    ) -> "Linear":
        """Fits features [r, f] to whether each candidate is relevant, bool [r]; the loss is a sum over candidates.

        rising: bool [f], the features with a weight of at least 0; None: no feature.
        """
        from scipy.optimize import minimize
        from scipy.special import expit

        mean, spread = features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)
        spread = np.where(spread > 1e-9, spread, 1.0)
        x, sign = (features - mean) / spread, np.where(relevant, 1.0, -1.0)

        x = np.append(x, np.ones((len(x), 1)), axis=1)  # the last parameter is the bias, which has no penalty
        penalties = np.append(np.full(features.shape[1], penalty), 0.0)

        def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            margin = sign * (x @ parameters)
            gradient = (-sign * expit(-margin)) @ x + penalties * parameters
            return float(np.logaddexp(0, -margin).sum() + penalties @ parameters**2 / 2), gradient

        held = np.zeros(features.shape[1], bool) if rising is None else rising
        bounds = [(0.0 if is_held else -np.inf, np.inf) for is_held in (*held, False)]
        precise = {"gtol": 1e-6, "ftol": 1e-14, "maxiter": 10_000, "maxfun": 20_000}
        best = minimize(loss, np.zeros(x.shape[1]), jac=True, bounds=bounds, method="L-BFGS-B", options=precise).x
        weights = best[:-1] / spread
        return cls(weights, float(best[-1] - mean @ weights))

    def scores(self, features: np.ndarray) -> np.ndarray:
        """See `Fusion`."""
        return np.asarray(features @ self.weights + self.bias, np.float32)

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """See `Fusion`; the rest is the bias and what the mean candidate has of each feature."""
        mean = features.mean(axis=0)
        rest = np.full((len(features), 1), self.bias + mean @ self.weights)
        return np.concatenate([(features - mean) * self.weights, rest], axis=1).astype(np.float32)

    def write(self, folder: Path, names: tuple[str, ...]) -> None:
        """See `Fusion`."""
        facts = {"form": LINEAR, "features": names, "weights": self.weights.tolist(), "bias": self.bias}
        (folder / FACTS).write_text(json.dumps(facts, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Trees:
    """LambdaMART."""

    booster: Any

    @classmethod
    def fit(
        cls,
        features: np.ndarray,
        relevant: np.ndarray,
        sizes: np.ndarray,
        rising: np.ndarray | None = None,
        *,
        trees: int = 200,
        leaves: int = 15,
        rate: float = 0.05,
        smallest_leaf: int = 40,
        seed: int = 0,
    ) -> "Trees":
        """Fits candidates [r, f] of queries with `sizes` [n] candidates each; `relevant` bool [r].

        One thread does it: two take as long, because they wait for each other at each leaf.

        rising: bool [f], the features that may only raise a score; None: no feature.
        """
        lightgbm = _lightgbm()
        parameters = {
            "objective": "lambdarank", "learning_rate": rate, "num_leaves": leaves, "min_data_in_leaf": smallest_leaf,
            "lambdarank_truncation_level": DEPTH, "deterministic": True, "force_row_wise": True, "seed": seed,
            "verbose": -1, "num_threads": 1,
        }  # fmt: skip
        if rising is not None:
            parameters["monotone_constraints"] = rising.astype(int).tolist()
            parameters["monotone_constraints_method"] = "advanced"  # forbids the fewest splits; `basic` is quicker
        data = lightgbm.Dataset(features, relevant.astype(np.int32), group=sizes)
        return cls(lightgbm.train(parameters, data, num_boost_round=trees))

    def scores(self, features: np.ndarray) -> np.ndarray:
        """See `Fusion`."""
        if not len(features):
            return np.empty(0, np.float32)
        return np.asarray(self.booster.predict(features, num_threads=1), np.float32)

    def contributions(self, features: np.ndarray) -> np.ndarray:
        """See `Fusion`; LightGBM's SHAP values (Lundberg and Lee, 2017)."""
        return np.asarray(self.booster.predict(features, pred_contrib=True, num_threads=1), np.float32)

    def write(self, folder: Path, names: tuple[str, ...]) -> None:
        """See `Fusion`."""
        (folder / FACTS).write_text(json.dumps({"form": TREES, "features": names}, indent=1), encoding="utf-8")
        (folder / MODEL).write_text(self.booster.model_to_string(), encoding="utf-8")


def _lightgbm() -> ModuleType:
    """Imports LightGBM without scikit-learn and pandas, which would take ten times as long and are not used.

    LightGBM's library needs the system's libgomp, which small images lack; torch has a copy of the same name.
    """
    with IMPORTING:
        if (loaded := sys.modules.get("lightgbm")) is not None:
            return loaded
        torch = find_spec("torch")
        for folder in torch.submodule_search_locations or () if torch else ():
            if (copy := Path(folder) / "lib" / "libgomp.so.1").is_file():
                ctypes.CDLL(str(copy), mode=ctypes.RTLD_GLOBAL)
        with absent("sklearn"), absent("pandas"):
            import lightgbm
        return cast(ModuleType, lightgbm)


def read_fusion(folder: Path, names: tuple[str, ...]) -> Fusion:
    """Opens a fusion; raises UserError if it reads other features than `names`."""
    facts = json.loads((folder / FACTS).read_text("utf-8"))
    if tuple(facts["features"]) != names:
        raise UserError(f"{folder} fuses {', '.join(facts['features'])}: run the step that made it again")
    if facts["form"] == ALONE:
        return Alone(facts["feature"], names.index(facts["feature"]))
    if facts["form"] == LINEAR:
        return Linear(np.array(facts["weights"]), facts["bias"])
    return Trees(_lightgbm().Booster(model_str=(folder / MODEL).read_text("utf-8")))
