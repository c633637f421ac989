"""Calls of the steps that train, use and compare re-rankers."""

from collections.abc import Sequence

from gnn_encoder.errors import UserError
from gnn_encoder.settings import documents, outcome, reranking
from gnn_encoder.settings.pipeline import NOTHING, Call, Settings
from gnn_encoder.settings.reranking_systems import ALL_SYSTEMS, LATE_KINDS, RERANKING_STUDIES, SYSTEMS, System
from gnn_encoder.settings.tasks import shared_calls


def reranking_calls(settings: Settings, systems: Sequence[str], study: str = "") -> dict[str, Call]:
    """Returns {name: call} of the steps that make training sets, train re-rankers, and compare them.

    The names of the calls in the pipeline's loops are `train.SYSTEM`, `rerank.SYSTEM` and, for systems on labelled
    triples, `propagate_sections.SYSTEM`, for systems that train on generated queries, `select.SYSTEM` and
    `evaluate_passages.SYSTEM`, for those that learn from a teacher `teacher.SYSTEM` and `score.SYSTEM`, for those in
    documents `encode_context.SYSTEM`. The last system is the candidate. `study`: one of `RERANKING_STUDIES`, which is
    reported, too.

    Raises:
        UserError: the first stage has the name of a re-ranker, several tasks are to score for a teacher, or a system
            propagates the scores of another that does not train on labelled triples.
    """
    evaluate, first, loops = settings.evaluate, settings.first_stage.system, reranking_loops(settings, systems)
    if study:
        evaluate = evaluate.model_copy(update={"measures": RERANKING_STUDIES[study].measures})
    if first in (ALL_SYSTEMS[name].title for name in systems):
        raise UserError(f"{settings.first_stage.source}: {first} is the name of a re-ranker: rename the file")
    if loops["distilled_systems"] != [NOTHING] and settings.score_candidates.shards > 1:
        raise UserError(
            f"score_candidates.shards = {settings.score_candidates.shards}: for a re-ranker that learns from a "
            "teacher, one task scores: add --set score_candidates.shards=1"
        )
    asked = loops["generated_systems"] != [NOTHING]
    negatives = {"negative_depth": settings.train_reranker.negative_depth}
    # A system takes what its `triples` name; selected triples and originals are 1 : 1 (SS-BERT).
    both = {"selection": True, "augmentation": True, "selection_mix": "equal"}
    generate = settings.generate_queries.model_copy(update=negatives)
    found = {
        **shared_calls("train_query_generator", settings.train_query_generator, asked),
        **shared_calls("generate_queries", generate, asked),
        "build_document_graph": Call(
            "build_document_graph", documents.BuildDocumentGraph(), asked=loops["document_systems"] != [NOTHING]
        ),
    }
    chosen_systems = [ALL_SYSTEMS[name] for name in systems]
    changing = {(system.step, system.evaluates): system.title for system in chosen_systems}
    for name in loops["generated_systems"]:
        system, title = ALL_SYSTEMS.get(name, System(name, "colbert")), changing.get(("evaluate_passages", name), "")
        chosen = settings.select_training_set.model_copy(update={**negatives, **both, **system.selection})
        tuned = settings.evaluate_passages.model_copy(update={"system": title, "measure": evaluate.measures[0]})
        found[f"select.{name}"] = Call("select_training_set", chosen, system.title, asked)
        found[f"evaluate_passages.{name}"] = Call("evaluate_passages", tuned, title, asked=bool(title))
    for system in chosen_systems:
        if system.step == "propagate_sections" and system.evaluates not in loops["systems"]:
            raise UserError(
                f"{system.title} needs {system.evaluates} on labelled triples, without a teacher: set "
                f"train_reranker.triples to labelled, and train_reranker.loss to auto, for {system.evaluates}"
            )
    for name in loops["systems"]:
        title = changing.get(("propagate_sections", name), "")
        own = {"system": title, "measure": evaluate.measures[0], "depth": settings.train_reranker.hits_of("colbert")}
        mixed = settings.propagate_sections.model_copy(update=own)
        found[f"propagate_sections.{name}"] = Call("propagate_sections", mixed, title, asked=bool(title))
    for name in (name for loop in loops.values() for name in loop):
        if name == NOTHING:
            found[f"train.{name}"] = Call("train_reranker", settings.train_reranker, asked=False)
            found[f"rerank.{name}"] = Call("rerank", outcome.Rerank(system=name), asked=False)
            found[f"teacher.{name}"] = Call("train_reranker", settings.train_reranker, asked=False)
            found[f"score.{name}"] = Call("score_candidates", settings.score_candidates, asked=False)
            found[f"encode_context.{name}"] = Call("encode_context", documents.EncodeContext(), asked=False)
            continue
        train, title = settings.train_reranker.for_system(name), ALL_SYSTEMS[name].title
        depth = settings.train_reranker.hits_of(train.kind)
        stored = settings.train_reranker.token_vectors if train.kind in LATE_KINDS else "fp16"
        rerank = outcome.Rerank(system=title, depth=depth, token_vectors=stored, **evaluate.speed)
        if name in loops["distilled_systems"]:
            teacher = settings.train_reranker.teacher()
            shared = teacher == settings.train_reranker.for_system("cross_encoder")  # so is its result
            label = SYSTEMS["cross_encoder"].title if shared else "Teacher"
            if teacher.nodes > 1:  # trainings of one label would meet in one place
                label = f"Teacher of {title}"
            found[f"teacher.{name}"] = Call("train_reranker", teacher, label)
            found[f"score.{name}"] = Call("score_candidates", settings.score_candidates)
        if name in loops["document_systems"]:
            encode = documents.EncodeContext(token_vectors=stored, **evaluate.speed)
            found[f"encode_context.{name}"] = Call("encode_context", encode, title)
        found[f"train.{name}"] = Call("train_reranker", train, title)
        found[f"rerank.{name}"] = Call("rerank", rerank, title)
    roles = {"baseline": first, "candidate": ALL_SYSTEMS[systems[-1]].title}
    studied = {"study": study, "systems": tuple(systems), "depth": settings.train_reranker.hits_of("cross_encoder")}
    compare = settings.compare_rerankers.model_copy(update=studied)
    return found | {
        "evaluate": Call("evaluate", evaluate.model_copy(update=roles)),
        "report": Call("report", outcome.Report(**evaluate.speed)),
        "choose_reranker": Call("choose_reranker", reranking.ChooseReranker()),
        "bundle_reranker": Call("bundle_reranker", reranking.BundleReranker()),
        "compare_rerankers": Call("compare_rerankers", compare, asked=bool(study)),
    }


def studied_systems(settings: Settings, study: str) -> list[str]:
    """Returns the systems of one of `RERANKING_STUDIES`, without variants with the same settings as their system."""
    train, systems = settings.train_reranker, RERANKING_STUDIES[study].systems
    same = {name: ALL_SYSTEMS[name].variant_of for name in systems if not ALL_SYSTEMS[name].selection}
    return [name for name in systems if not same.get(name) or train.for_system(name) != train.for_system(same[name])]


def reranking_loops(settings: Settings, systems: Sequence[str]) -> dict[str, list[str]]:
    """Returns {loop of the pipeline: its systems}: on labelled triples, on generated queries, with a teacher, and in
    documents.

    So a change of the generated queries trains only the systems again that use them.
    """
    trained = [name for name in systems if not ALL_SYSTEMS[name].evaluates]
    loops: dict[str, list[str]] = {
        "systems": [], "generated_systems": [], "distilled_systems": [], "document_systems": []
    }  # fmt: skip
    for name in trained:
        own = settings.train_reranker.for_system(name)
        taught = own.resolved_loss == "listwise_distillation"
        on_labels = "systems" if own.triples == "labelled" else "generated_systems"
        loops["document_systems" if own.in_documents else "distilled_systems" if taught else on_labels].append(name)
    return {loop: names or [NOTHING] for loop, names in loops.items()}
