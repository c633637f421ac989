"""What a finished climb was made with: its rung, its settings and its re-ranker, read from what it left."""

from pathlib import Path
from typing import Any

from gnn_encoder.artifacts import Bundle
from gnn_encoder.artifacts.bundle import RERANKER
from gnn_encoder.artifacts.finished_run import BUNDLE
from gnn_encoder.artifacts.folder import digest_of, drafting
from gnn_encoder.artifacts.history import of_encoding, read_history, write_history
from gnn_encoder.errors import UserError
from gnn_encoder.settings.outcome import IndexKind
from gnn_encoder.settings.pipeline import PIPELINES
from gnn_encoder.settings.presets import settable
from gnn_encoder.settings.rungs import LABELS, RERANKING, RUNGS
from gnn_encoder.settings.systems import LABEL_FIELD, LEXICAL, NOT_TRAINED, RERANKED, SYSTEMS, UNTRAINED

KEPT_RERANKERS = "rerankers"
"""Folder under the root with the re-rankers that updates have taken from bundles."""
TRAINED_RERANKER = f"train_reranker: {RERANKED}"


def rung_of(since: Path) -> str:
    """Returns the rung that a finished run in folder `since` has reached; empty if it did not climb."""
    advice = since / "recommendation"
    titles = [*read_history(advice)] if advice.exists() else []
    rung = titles[-1].partition(": ")[2] if titles else ""
    return rung if rung in RUNGS else ""


def serves_untrained(since: Path) -> bool:
    """Returns whether a finished climb's bundle, without its re-ranker, is of a rung that trains nothing."""
    if not rung_of(since):
        return False
    row = SYSTEMS.get(Bundle.read(since / BUNDLE).system)
    return row is None or row.as_it_is or row.name in (LEXICAL, UNTRAINED, LABEL_FIELD)


def settings_of(since: Path) -> dict[str, dict[str, Any]]:
    """Returns the settings of a finished climb's rungs that train nothing, with the encoder that it has chosen.

    If it has re-ranked, those of its re-ranking are there, too, right above labels and without any training.
    """
    history = read_history(since / "decision")
    steps = [*PIPELINES["ladder"], *(("first_stage", "weigh_reranker") if rung_of(since) == RERANKING else ())]
    tree: dict[str, dict[str, Any]] = {"encode_with_labels": {}, "fuse_parts": {}}
    kinds: dict[str, list[str]] = {step: [] for step in tree}
    for title, record in history.items():
        step = title.partition(": ")[0]
        # A training has calls of the same steps, over M_de.
        if step not in steps or (step in kinds and not record.settings.get("system")):
            continue
        if step == "make_parts" and title != f"make_parts: {NOT_TRAINED}":
            continue
        if step == "encode" and record is not of_encoding(history):  # one that was not chosen
            continue
        tree[step] = {name: value for name, value in record.settings.items() if name in settable(step)}
        if step in kinds:
            kinds[step].append(record.settings["kind"])
    tree |= {step: {**tree[step], "kinds": kinds[step]} for step in kinds}
    tree["bm25_retrieve"].pop("train_depth")  # the rungs decide it
    tree["ingest"].pop("chosen_on_dev", None)  # of a run's trainings
    if bundled := history.get(f"bundle_dual_encoder: {UNTRAINED}"):
        tree["encode_corpus"] = {name: bundled.settings[name] for name in IndexKind.model_fields}
        tree["build_graph"] = {"vector_type": bundled.settings["vector_type"]}
    if "weigh_reranker" in tree:
        tree["first_stage"]["train_depth"] = 0  # nothing needs negatives
        tree["weigh_reranker"]["above"] = LABELS
        ranked = history[f"rerank: {RERANKED}"].settings
        tree["train_reranker"] = {name: ranked[name] for name in ("depth", "token_vectors")}
    return tree


def kept_reranker(bundle: Path, root: Path, writes: bool = True) -> Path:
    """Returns a folder with the re-ranker of a climb's bundle as an artifact; if the call must not write, the bundle.

    The copy is named by its content and takes no space of its own.
    """
    opened = Bundle.read(bundle)
    files = {name: of.sha256 for name, of in opened.manifest.files.items() if name.startswith(f"{RERANKER}/")}
    history = {title: of for title, of in read_history(bundle).items() if title == TRAINED_RERANKER}
    if not files or not history:
        raise UserError(f"{bundle} has no re-ranker of a climb: run gnn-encoder run again")
    copy = root / KEPT_RERANKERS / digest_of(files)[:20]
    if not copy.is_dir():
        if not writes:
            return bundle.resolve()
        with drafting(copy, "model") as draft:
            for name in files:
                draft.share(opened, name, name.removeprefix(f"{RERANKER}/"))
            write_history(draft.path, history)
            draft.manifest.step = "train_reranker"
    return copy
