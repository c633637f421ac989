"""The re-ranking pipeline: trains re-rankers on one first stage, side by side, and compares them with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gnn_encoder.errors import UserError
from gnn_encoder.flow.graph import Artifact, Given, Graph, Output
from gnn_encoder.pipelines.foundation import Generated, search_by_words, with_early_refusals, write_queries
from gnn_encoder.settings import documents, outcome, reranking
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import changed_settings
from gnn_encoder.settings.reranking_systems import ALL_SYSTEMS, LATE_KINDS, RERANKING_STUDIES, changed_by
from gnn_encoder.settings.rungs import DECIDE, RERANK

TRIPLES = ("labelled", "generated", "distilled", "documents")
"""What re-rankers are trained on, in the order of the tables: labelled triples; generated queries, too; the scores of a
teacher; passages in their documents. After a change of the generated queries, only the systems that use them are
trained again."""


@dataclass
class Reranked:
    """Artifacts of the trained re-rankers, by system."""

    title: str = ""
    """Name of the only one in the tables; empty: each has its own."""
    models: dict[str, Artifact] = field(default_factory=dict)
    """One that is here already is not trained."""
    scorers: dict[str, Artifact] = field(default_factory=dict)
    """What ranks: the model, or the model with the context of the passages."""
    runs: dict[str, Output] = field(default_factory=dict)


def rerank(settings: Settings, systems: Sequence[str], study: str = "", bundle: Given | None = None) -> Graph:
    """Returns the graph from raw text to one table of all re-rankers, and the best of them.

    Args:
        systems: names in `ALL_SYSTEMS`; the last is the one in the headline.
        study: one of `RERANKING_STUDIES`, which is reported, too.
        bundle: the first stage's bundle, which then gets the best re-ranker, and which the gate decides on.

    Raises:
        UserError: the first stage has the name of a re-ranker, several tasks are to score for a teacher, or a system
            propagates the scores of another that does not train on labelled triples, or learns from such a teacher.
    """
    of_kind = trained_on(settings, systems)
    _check(settings, systems, of_kind)
    flow = Graph("rerank", "Compares re-rankers on queries that they never saw.", changed_settings(settings))
    reranked = Reranked()
    dataset, bm25_index, bm25_run = search_by_words(flow, settings)
    flow.begin(RERANK)
    first_run = flow.add(
        "first_stage", settings.first_stage, dataset=dataset, bm25_run=bm25_run, bm25_index=bm25_index
    ).output
    first = {"dataset": dataset, "first_run": first_run}
    evaluate = settings.evaluate
    if study:
        evaluate = evaluate.model_copy(update={"measures": RERANKING_STUDIES[study].measures})
    runs = [first_run]

    for name in of_kind["labelled"]:
        runs.append(train_and_rank(flow, settings, name, reranked, first))
    for name in changed_by("propagate_sections", systems):
        runs.append(propagate(flow, settings, name, reranked, evaluate.measures[0], dataset))

    # A query for each negative says how hard the negative is, and is a new query that the negative answers.
    generated: Generated | None = None
    if of_kind["generated"]:
        depth = settings.train_reranker.negative_depth
        generated = write_queries(flow, settings, dataset, first_run, negative_depth=depth)
        for name in of_kind["generated"]:
            training_set = select_triples(flow, settings, name, first, generated)
            runs.append(train_and_rank(flow, settings, name, reranked, first, training_set=training_set))
        for name in changed_by("evaluate_passages", systems):
            runs.append(weigh_by_generator(flow, settings, name, reranked, evaluate.measures[0], dataset, generated))

    for name in of_kind["distilled"]:
        scores = scores_of_teacher(flow, settings, name, first)
        runs.append(train_and_rank(flow, settings, name, reranked, first, pair_scores=scores))

    if of_kind["documents"]:
        document_graph = flow.add("build_document_graph", documents.BuildDocumentGraph(), dataset=dataset).output
        for name in of_kind["documents"]:
            runs.append(train_and_rank(flow, settings, name, reranked, first, document_graph=document_graph))

    flow.begin(DECIDE)
    roles = {"baseline": settings.first_stage.system, "candidate": ALL_SYSTEMS[systems[-1]].title}
    evaluation = flow.add("evaluate", evaluate.model_copy(update=roles), dataset=dataset, runs=runs).output
    judged = {"dataset": dataset, "evaluation": evaluation}
    page = flow.add("report", outcome.Report(**evaluate.speed, changed=flow.changed), **judged)
    if study:
        studied = {"study": study, "systems": tuple(systems), "depth": settings.train_reranker.hits_of("cross_encoder")}
        flow.add(
            "compare_rerankers",
            settings.compare_rerankers.model_copy(update=studied),
            evaluation=evaluation,
            rerankers=list(reranked.models.values()),
            generated_queries=generated.queries if generated else None,
            **first,
        )
    ranked, scorers = list(reranked.runs.values()), list(reranked.scorers.values())
    choose = reranking.ChooseReranker()
    best = flow.add("choose_reranker", choose, dataset=dataset, runs=ranked, scorers=scorers).output
    if bundle:
        runs, added = [first_run, *ranked], reranking.BundleReranker()
        bundled = flow.add("bundle_reranker", added, first_stage=bundle, reranker=best, runs=runs, **judged).output
        if not study:  # a study has its own measures
            flow.add("promote", settings.promote, "", [page], bundle=bundled, runs=runs, **judged)
    return with_early_refusals(flow)


def trained_on(settings: Settings, systems: Sequence[str]) -> dict[str, list[str]]:
    """Returns {one of `TRIPLES`: systems that are trained on it}."""
    of_kind: dict[str, list[str]] = {kind: [] for kind in TRIPLES}
    for name in systems:
        if ALL_SYSTEMS[name].evaluates:
            continue
        training = settings.train_reranker.for_system(name)
        kind = "labelled" if training.triples == "labelled" else "generated"
        if training.in_documents:
            kind = "documents"
        elif training.resolved_loss == "listwise_distillation":
            kind = "distilled"
        of_kind[kind].append(name)
    return of_kind


def train_and_rank(
    flow: Graph, settings: Settings, name: str, reranked: Reranked, first: Mapping[str, Output], **more: Output
) -> Output:
    """Adds a re-ranker's training, unless it is given, and its ranking of the first stage's hits; returns the run."""
    train, title = settings.train_reranker.for_system(name), reranked.title or ALL_SYSTEMS[name].title
    stored = settings.train_reranker.token_vectors if train.kind in LATE_KINDS else "fp16"
    speed = settings.evaluate.speed
    if name not in reranked.models:
        reranked.models[name] = flow.add("train_reranker", train, title, **first, **more).output
    scorer = reranked.models[name]
    if document_graph := more.get("document_graph"):
        encode = documents.EncodeContext(token_vectors=stored, **speed)
        scorer = flow.add(
            "encode_context", encode, title, dataset=first["dataset"], document_graph=document_graph, reranker=scorer
        ).output
    depth = settings.train_reranker.hits_of(train.kind)
    rank = outcome.Rerank(system=title, depth=depth, token_vectors=stored, **speed)
    reranked.scorers[name] = scorer
    reranked.runs[name] = flow.add("rerank", rank, title, scorer=scorer, **first).output
    return reranked.runs[name]


def select_triples(
    flow: Graph, settings: Settings, name: str, first: Mapping[str, Output], generated: Generated
) -> Output:
    """Adds the choice of triples by generated queries (SS-BERT 3). Selected triples and originals are 1 : 1."""
    depth, system = settings.train_reranker.negative_depth, ALL_SYSTEMS[name]
    both = {"selection": True, "augmentation": True, "selection_mix": "equal"}
    chosen = settings.select_training_set.model_copy(update={"negative_depth": depth, **both, **system.selection})
    return flow.add(
        "select_training_set",
        chosen,
        system.title,
        dataset=first["dataset"],
        candidates=first["first_run"],
        generated_queries=generated.queries,
    ).output


def scores_of_teacher(flow: Graph, settings: Settings, name: str, first: Mapping[str, Output]) -> Output:
    """Adds the training of a re-ranker's teacher, and its scores of the first stage's hits; both once for all students.

    With equal settings the teacher is the system `cross_encoder`.
    """
    teacher = settings.train_reranker.teacher()
    shared = teacher == settings.train_reranker.for_system("cross_encoder")
    title = ALL_SYSTEMS["cross_encoder"].title if shared else "Teacher"
    same = [node for node in flow.of("train_reranker") if node.settings == teacher and node.inputs == first]
    model = (same[0] if same else flow.add("train_reranker", teacher, title, **first)).output
    scored = {"dataset": first["dataset"], "bm25_run": first["first_run"], "cross_encoder": model}
    done = [node for node in flow.of("score_candidates") if node.inputs == scored]
    if not done:
        done = [flow.add("score_candidates", settings.score_candidates, ALL_SYSTEMS[name].title, **scored)]
    return done[0].output


def propagate(flow: Graph, settings: Settings, name: str, reranked: Reranked, measure: str, dataset: Output) -> Output:
    """Adds a ranking by a re-ranker's scores and their means in sections (QSF sectionPropagateAVG)."""
    system = ALL_SYSTEMS[name]
    changes = {"system": system.title, "measure": measure, "depth": settings.train_reranker.hits_of("colbert")}
    mixed = settings.propagate_sections.model_copy(update=changes)
    ranking = reranked.runs[system.evaluates]
    return flow.add("propagate_sections", mixed, system.title, dataset=dataset, ranking=ranking).output


def weigh_by_generator(
    flow: Graph, settings: Settings, name: str, reranked: Reranked, measure: str, dataset: Output, generated: Generated
) -> Output:
    """Adds a ranking by a re-ranker's scores and the likelihood of the query (SS-BERT 3.4)."""
    system = ALL_SYSTEMS[name]
    tuned = settings.evaluate_passages.model_copy(update={"system": system.title, "measure": measure})
    return flow.add(
        "evaluate_passages",
        tuned,
        system.title,
        dataset=dataset,
        ranking=reranked.runs[system.evaluates],
        query_generator=generated.generator,
    ).output


def _check(settings: Settings, systems: Sequence[str], of_kind: Mapping[str, Sequence[str]]) -> None:
    first = settings.first_stage
    if first.system in (ALL_SYSTEMS[name].title for name in systems):
        raise UserError(f"{first.source}: {first.system} is the name of a re-ranker: rename the file")
    if of_kind["distilled"] and settings.score_candidates.shards > 1:
        raise UserError(
            f"score_candidates.shards = {settings.score_candidates.shards}: for a re-ranker that learns from a "
            "teacher, one task scores: add --set score_candidates.shards=1"
        )
    if of_kind["distilled"] and (triples := settings.train_reranker.teacher().triples) != "labelled":
        raise UserError(
            f"train_reranker.triples = {triples} for cross_encoder, the teacher of {', '.join(of_kind['distilled'])}: "
            "a teacher trains on labelled triples: add --set train_reranker.systems.cross_encoder.triples=labelled"
        )
    for name in changed_by("propagate_sections", systems):
        system = ALL_SYSTEMS[name]
        if system.evaluates not in of_kind["labelled"]:
            raise UserError(
                f"{system.title} needs {system.evaluates} on labelled triples, without a teacher: set "
                f"train_reranker.triples to labelled, and train_reranker.loss to auto, for {system.evaluates}"
            )
