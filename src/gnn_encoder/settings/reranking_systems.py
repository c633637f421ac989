"""The re-rankers that `gnn-encoder rerank` knows, and the studies of them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from gnn_encoder.errors import UserError
from gnn_encoder.settings.documents import EDGE_KINDS
from gnn_encoder.settings.measures import Measure

RerankerKind = Literal["cross_encoder", "bert_dmn", "colbert", "qa_lstm", "k_nrm", "dmn", "mim", "lim", "mix_im"]
PAIR_KINDS: tuple[RerankerKind, ...] = ("cross_encoder", "bert_dmn")
"""Kinds that read a pair as one text; these can be lite."""
WORD_KINDS: tuple[RerankerKind, ...] = ("qa_lstm", "k_nrm", "dmn")
"""Kinds on word vectors."""
DOCUMENT_KINDS: tuple[RerankerKind, ...] = ("mim", "lim", "mix_im")
"""Kinds that read a passage's context in its documents (Albarede et al. 2022)."""
LATE_KINDS: tuple[RerankerKind, ...] = ("colbert", *DOCUMENT_KINDS)
"""Kinds that compare vectors of tokens."""


class System(NamedTuple):
    """A re-ranker of the comparison: its title in all tables, its kind, and the settings that it changes."""

    title: str
    kind: RerankerKind
    changes: Mapping[str, Any] = {}
    evaluates: str = ""
    """The system whose ranking `step` changes; nothing is trained for this one."""
    selection: Mapping[str, Any] = {}
    """Changes of `select_training_set`, for a system on generated queries."""
    step: Literal["evaluate_passages", "propagate_sections"] = "evaluate_passages"
    """The step that changes the ranking of `evaluates`. `propagate_sections` needs data with documents."""
    variant_of: str = ""
    """For a variant in a study: the system that shares its section in `train_reranker.systems`."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps that are called with its title."""
        if self.evaluates:
            return (self.step,)
        return ("train_reranker", *(("encode_context",) if self.kind in DOCUMENT_KINDS else ()), "rerank")


SYSTEMS: dict[str, System] = {
    "cross_encoder": System("Cross-encoder", "cross_encoder"),
    "bert_dmn": System("BERT-DMN", "bert_dmn"),
    "cross_encoder_lite": System("Cross-encoder lite", "cross_encoder", {"lite": True}),
    "bert_dmn_lite": System("BERT-DMN lite", "bert_dmn", {"lite": True}),
    "colbert": System("ColBERT", "colbert"),
    "colbert_titles": System("ColBERT, titles first", "colbert", {"titles": True}),
    "qa_lstm": System("QA-LSTM", "qa_lstm"),
    "k_nrm": System("K-NRM", "k_nrm"),
    "dmn": System("DMN", "dmn"),
    "qsf": System("QSF sectionPropagateAVG", "colbert", evaluates="colbert", step="propagate_sections"),
    "ss_bert_t": System("SS-BERT(t)", "colbert", {"triples": "selected"}, selection={"augmentation": False}),
    "ss_bert_h": System("SS-BERT(h)", "colbert", {"triples": "augmented"}),
    "ss_bert_d": System("SS-BERT(d)", "colbert", evaluates="ss_bert_h"),
    "colbert_distilled": System("ColBERT, distilled", "colbert", {"loss": "listwise_distillation"}),
    "mim": System("MiM", "mim"),
    "lim": System("LiM", "lim"),
    "mix_im": System("Mix-iM", "mix_im"),
}
_STRUCTURED = {
    "learning_rate": 3e-6, "head_learning_rate": 1e-3, "weight_decay": 0.0, "query_length": 120, "passage_length": 180,
}  # fmt: skip
"""Albarede et al. 2022, section 3. Without weight decay, AdamW is the paper's Adam."""
NUMBERS: dict[RerankerKind, Mapping[str, Any]] = {
    "k_nrm": {"head_learning_rate": 1e-3, "adam_epsilon": 1e-5, "weight_decay": 0.0, "batch_size": 16},
    **dict.fromkeys(DOCUMENT_KINDS, _STRUCTURED),
}
"""Kind → numbers of its paper (`k_nrm`: BERT-DMN 5), for this kind alone. A general setting is meant for the
transformers and leaves them as they are; the kind's section in `systems` replaces them."""

THRESHOLDS: dict[str, System] = {
    f"ss_bert_h_{t_a}": System(
        f"SS-BERT(h), t_A = {t_a}",
        "colbert",
        {"triples": "augmented"},
        selection={"augmentation_threshold": t_a},
        variant_of="ss_bert_h",
    )
    for t_a in (0.05, 0.15, 0.2, 0.25, 0.3)
}
"""Further systems of the study `ss_bert`. SS-BERT 4.3 has t_A from 0.1 to 0.4 in steps of 0.06."""
_VARIED: dict[str, tuple[str, Mapping[str, Any]]] = {
    **{
        f"lim_without_{kind}": (f"LiM without {kind}", {"edge_types": tuple(k for k in EDGE_KINDS if k != kind)})
        for kind in EDGE_KINDS
    },
    **{f"lim_layers_{n}": (f"LiM, layers: {n}", {"graph_layers": n}) for n in (1, 2, 3)},
    **{f"lim_{how}": (f"LiM, {how} of neighbours", {"neighbour_reduction": how}) for how in ("sum", "mean")},
    **{f"lim_{which}": (f"LiM, {which} neighbours", {"neighbours": which}) for which in ("cached", "live")},
    **{f"lim_share_{share}": (f"LiM, λ = {share}", {"context_weight": share}) for share in (0.0, 0.25, 0.5, 0.75, 1.0)},
}
STRUCTURE = {name: System(title, "lim", changes, variant_of="lim") for name, (title, changes) in _VARIED.items()}
"""Further systems of the study `structure`: what of LiM and its document graph matters. A variant that the settings
make equal to LiM is left out."""
FOLDERS: dict[str, tuple[str, RerankerKind, Mapping[str, Any]]] = {
    "published:": ("published", "cross_encoder", {}),
    "trained:": ("trained further", "cross_encoder", {"train_published": True}),
    "colbert:": ("published", "colbert", {}),
}
"""Prefix of a system that is a published re-ranker, such as `published:FOLDER` → what its title says, kind, changes."""


class _Systems(dict[str, System]):
    """Systems by name; also has a system for each published re-ranker."""

    def __missing__(self, name: str) -> System:
        prefix, colon, folder = name.partition(":")
        title, kind, changes = FOLDERS[prefix + colon]
        last = re.split("[/#]", folder.rstrip("/"))[-1]
        return System(f"{last}, {title}", kind, {"published": folder, **changes})

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or any(str(name).startswith(prefix) and name != prefix for prefix in FOLDERS)


ALL_SYSTEMS = _Systems(SYSTEMS | THRESHOLDS | STRUCTURE)


class Study(NamedTuple):
    """A comparison of re-rankers: a paper's, or this project's own."""

    systems: tuple[str, ...]
    """In the order of the table; the last is the headline's."""
    measures: tuple[Measure, ...]
    against: Mapping[str, str]
    """System → another one, over which its gain is reported."""
    encoders: Mapping[str, str] = {}
    """Label → the system whose encoder's outputs are compared. A lite system has the untrained encoder."""


RERANKING_STUDIES: dict[str, Study] = {
    "bert_dmn": Study(
        ("qa_lstm", "k_nrm", "dmn", "cross_encoder_lite", "bert_dmn_lite", "cross_encoder", "bert_dmn"),
        ("AP", "RR"),
        {"bert_dmn": "cross_encoder", "bert_dmn_lite": "cross_encoder_lite"},
        {"untrained": "cross_encoder_lite", "BERT": "cross_encoder", "BERT-DMN": "bert_dmn"},
    ),
    "ss_bert": Study(
        ("colbert", "ss_bert_t", "ss_bert_h", *THRESHOLDS, "ss_bert_d"),
        ("RR@10", "R@50", "R@1000"),
        dict.fromkeys(("ss_bert_t", "ss_bert_h", "ss_bert_d"), "colbert"),
    ),
    "structure": Study(
        ("colbert", *STRUCTURE, "lim"),
        ("RR@10", "nDCG@10", "R@100", "PRES(doc)@100", "R(doc)@100", "AP(doc)@100", "MAP(D)", "PREC(D)"),
        {"lim": "colbert", **dict.fromkeys(STRUCTURE, "lim")},
    ),
}
"""Study of `gnn-encoder ablate` → its systems: BERT-DMN Table 2, SS-BERT Table 6 with Fig. 4, and one
of this project."""


def system_names(names: Sequence[str]) -> list[str]:
    """Returns the names of systems, each once, where it is named last; a UserError for no name or an unknown one.

    A system that nobody names is before the one that evaluates it.
    """
    unknown = [name for name in names if name not in ALL_SYSTEMS or name in THRESHOLDS or name in STRUCTURE]
    if unknown or not names:
        known = f"{', '.join(SYSTEMS)}, {', '.join(f'{prefix}FOLDER' for prefix in FOLDERS)}"
        raise UserError(f"no system {', '.join(map(repr, unknown)) or 'is named'}: choose of {known}")
    added = {ALL_SYSTEMS[name].evaluates for name in names} - {"", *names}
    complete = [system for name in names for system in (*({ALL_SYSTEMS[name].evaluates} & added), name)]
    complete = list(dict.fromkeys(reversed(complete)))[::-1]
    # Names of calls, links and files keep nothing else.
    titles = [re.sub(r"[^a-z0-9]+", "", ALL_SYSTEMS[name].title.lower()) for name in complete]
    if twice := [name for name, title in zip(complete, titles, strict=True) if titles.count(title) > 1]:
        raise UserError(f"{' and '.join(twice)} have one name in the table: rename a folder")
    return complete


def changed_by(step: str, systems: Sequence[str]) -> list[str]:
    """Returns the systems that a step makes by changing the ranking of another system."""
    return [name for name in systems if ALL_SYSTEMS[name].evaluates and ALL_SYSTEMS[name].step == step]
