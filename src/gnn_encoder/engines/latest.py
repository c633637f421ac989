"""What a root keeps of its runs: the links of `latest/`, and the labels that were added since the last run."""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle, Dataset
from gnn_encoder.artifacts.added_labels import ADDED_LABELS, AddedLabel, read_labels
from gnn_encoder.artifacts.bundle import ADDED
from gnn_encoder.artifacts.finished_run import BUNDLE, BUNDLES, check_place, labelled_bundle, place_of
from gnn_encoder.artifacts.folder import read_manifest
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.errors import UserError
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.systems import GNN_ENCODER, systems_with_models

MODELS = ("dual_encoder", "cross_encoder", "gnn_encoder")
KEPT = (BUNDLE, "recommendation", "report", "decision", "dataset", "graph", "passage_vectors", "encoding", *MODELS)
"""Outputs of a finished run that users and updates need; `latest/` under the root has links to them, and to the bundle
of each system."""
CHOSEN = "chosen_bundle"
"""Output with the recommended bundle, which is `latest/bundle`."""
ENCODING = "merge: encode_nodes/merged"
"""Output with the vectors of all nodes."""
KEPT_LABELS = "labels"
"""Folder under the root with the added labels that pipelines have read."""
FORGOTTEN = "forgotten/digests.json"
"""File under the root with the digests of what `gnn-encoder forget` took out (`data.forgotten`)."""


def with_added_labels(settings: Settings, root: Path, writes: bool = True) -> Settings:
    """Returns settings that read the labels added to the root's latest bundle, if it was made from the same data, and
    leave out what was forgotten in the root.

    `writes`: as of `kept_labels`.
    """
    settings = without_forgotten(settings, root)
    try:
        check_place(root)
    except UserError as error:
        print(f"warning: no added labels are read: {error}", file=sys.stderr)
        return settings
    bundle, latest = labelled_bundle(root / "latest"), root / "latest" / "dataset"
    if settings.ingest.labels or not (bundle / ADDED).is_dir():
        return settings
    if not same_data(settings.ingest.model_dump(mode="json"), read_manifest(latest, "dataset").settings):
        return settings
    ingest = settings.ingest.model_copy(update={"labels": kept_labels(bundle, root, writes)})
    return settings.model_copy(update={"ingest": ingest})


def without_forgotten(settings: Settings, root: Path) -> Settings:
    """Returns settings that leave out what was forgotten in a root."""
    file = root.resolve() / FORGOTTEN
    ingest = settings.ingest.model_copy(update={"forgotten": str(file)})
    return settings.model_copy(update={"ingest": ingest}) if file.is_file() else settings


def same_data(settings: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Returns whether two settings of `ingest` name the same data, with the same ids of passages."""
    return all(settings.get(name) == others.get(name) for name in ("dataset", "format", "document_depth"))


def kept_labels(bundle: Path, root: Path, writes: bool = True) -> str:
    """Returns a file with the labels added to a bundle, empty if there are none.

    The file is a copy named by its content, because labels may be added while the pipeline runs. A copy that is not
    there is made only if the call `writes`; otherwise the file is the bundle's.
    """
    source = bundle / ADDED / ADDED_LABELS
    content = source.read_bytes() if source.is_file() else b""
    if not content:
        return ""
    copy = root / KEPT_LABELS / f"{hashlib.sha256(content).hexdigest()[:20]}.jsonl"
    if not copy.is_file():
        if not writes:
            return str(source)
        copy.parent.mkdir(exist_ok=True)
        fresh = copy.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(content)
        fresh.replace(copy)
    return str(copy)


def with_latest(root: Path, outcome: Outcome) -> Outcome:
    """Links `latest/bundle` and the others to the outputs of a finished run; returns the outcome.

    `latest/bundle` is the chosen bundle, and `latest/bundles/` has the bundle of each system that the run made.
    """
    if outcome.status != "FINISHED":
        return outcome
    outputs, bundles = outcome.outputs, {}
    for name, path in outputs.items():
        if name.rpartition("/")[2] == BUNDLE and read_manifest(path).rows:  # without rows: not recommended
            bundles[place_of(Bundle.read(path).system)] = path
    outputs |= bundles | {BUNDLE: outputs[CHOSEN]}
    if "graph" not in outputs:  # nothing was trained: links to the models of an earlier training would mislead
        for name in {*KEPT, *(row.model for row in systems_with_models())} - outputs.keys():
            (root / "latest" / name).unlink(missing_ok=True)
    else:
        outputs["graph"] = outputs.get("chosen_graph", outputs["graph"])
        if "gnn_encoder" not in outputs:  # an update, whose dual encoder is that of the rungs below the training
            outputs.pop("dual_encoder", None)
    if ENCODING in outputs:  # of several tasks
        outputs["encoding"] = outputs[ENCODING]
    needed = []
    if "gnn_encoder" in outputs:  # of a training, not of an update
        for row in systems_with_models():
            if place_of(row.name) in bundles:
                outputs[row.model] = outputs.get(f"train_dual_encoder: {row.name}/dual_encoder") or outputs[row.model]
                needed.append(row.model)
            else:
                (root / "latest" / row.model).unlink(missing_ok=True)
    labels = _labels_to_keep(root, outcome)  # before the links change
    # A bundle of an earlier run would be of other models.
    for link in (root / "latest" / BUNDLES).glob("*"):
        if link.is_symlink() and f"{BUNDLES}/{link.name}" not in bundles:
            link.unlink()
    for name in [name for name in (*KEPT, *needed, *bundles) if name in outputs]:
        outputs[name] = linked(root, name, outputs[name])
    if labels is not None:
        _keep_labels(labelled_bundle(root / "latest"), labels)
    return outcome


def with_reranker(root: Path, former: Sequence[AddedLabel] | None, outcome: Outcome) -> Outcome:
    """Links `latest/bundle` to the re-ranked bundle of a finished run; returns the outcome.

    `former`: the labels that `latest/bundle` had when the run copied it; None: the run's first stage is another. If
    labels were added meanwhile, or removed, the new bundle has the same.
    """
    if outcome.status != "FINISHED" or BUNDLE not in outcome.outputs:
        return outcome
    link = root / "latest" / BUNDLE
    now = None if former is None else added_labels(Bundle.read(link))
    outcome.outputs[BUNDLE] = linked(root, BUNDLE, outcome.outputs[BUNDLE])
    if now is not None and now != former:
        _keep_labels(link, now)
    return outcome


def added_labels(bundle: Bundle) -> list[AddedLabel]:
    """Returns the labels that were added to a bundle."""
    return bundle.added.labels if bundle.added else []


def linked(root: Path, name: str, target: Path) -> Path:
    """Makes `latest/NAME` a link to a folder; returns the link."""
    link = root / "latest" / name
    fresh = link.with_name(f".{link.name}")
    link.parent.mkdir(parents=True, exist_ok=True)
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    return fresh.replace(link)


def _labels_to_keep(root: Path, outcome: Outcome) -> list[AddedLabel] | None:
    """Returns the labels for the new bundle, if some were added to the latest or removed while the pipeline ran."""
    latest, settings = root / "latest", read_manifest(outcome.outputs["dataset"], "dataset").settings
    if not (latest / "dataset").exists() or not same_data(
        settings, read_manifest(latest / "dataset", "dataset").settings
    ):
        return None
    file = Path(settings["labels"]) if settings.get("labels") else None
    if file and file.parent != root / KEPT_LABELS:
        return None  # the user named another file
    before, bundle = read_labels(file) if file else [], Bundle.read(labelled_bundle(latest))
    if bundle.labels_path is None and bundle.system != GNN_ENCODER:
        return None  # it takes no labels
    now, read = added_labels(bundle), Dataset(outcome.outputs["dataset"]).added
    if now == before:
        return None
    return [label for label in read if label in now] + [label for label in now if label not in before]


def _keep_labels(bundle: Path, labels: Sequence[AddedLabel]) -> None:
    from gnn_encoder.labels.adding import replace_labels  # imports torch

    try:
        replace_labels(bundle, labels)
    except UserError as error:
        print(f"labels added before: {error}", file=sys.stderr)
