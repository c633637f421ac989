"""The settings of all steps, the rules between settings of several steps, and the steps of each pipeline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from gnn_encoder.errors import UserError
from gnn_encoder.settings import documents, foundation, graph, labels, outcome, reranking
from gnn_encoder.settings.bm25 import Lexical
from gnn_encoder.settings.first_stage import FirstStage
from gnn_encoder.settings.outcome import Fuse, Rank
from gnn_encoder.settings.reranking_systems import (
    ALL_SYSTEMS,
    DOCUMENT_KINDS,
    LATE_KINDS,
    RERANKING_STUDIES,
    SYSTEMS,
    System,
)
from gnn_encoder.settings.shared import Backbone, Merge, OnNodes, Sharded
from gnn_encoder.settings.systems import CONVERGED, CROSS_ENCODER, DUAL_ENCODER, GNN_ENCODER, UNTRAINED
from gnn_encoder.settings.values import StepSettings


class Settings(StepSettings):
    """The settings of all steps. Field names are the names of the steps, in the order of the pipelines."""

    ingest: foundation.Ingest = foundation.Ingest()
    bm25_retrieve: foundation.Bm25Retrieve = foundation.Bm25Retrieve()
    train_dpr: foundation.TrainDpr = foundation.TrainDpr()
    dense_retrieve: foundation.DenseRetrieve = foundation.DenseRetrieve()
    train_cross_encoder: foundation.TrainCrossEncoder = foundation.TrainCrossEncoder()
    score_candidates: foundation.ScoreCandidates = foundation.ScoreCandidates()
    train_query_generator: foundation.TrainQueryGenerator = foundation.TrainQueryGenerator()
    generate_queries: foundation.GenerateQueries = foundation.GenerateQueries()
    select_training_set: foundation.SelectTrainingSet = foundation.SelectTrainingSet()
    train_dual_encoder: foundation.TrainDualEncoder = foundation.TrainDualEncoder()
    build_graph: graph.BuildGraph = graph.BuildGraph()
    choose_graph: graph.ChooseGraph = graph.ChooseGraph()
    encode_with_labels: labels.EncodeWithLabels = labels.EncodeWithLabels()
    train_gnn: graph.TrainGnn = graph.TrainGnn()
    train_converged: foundation.TrainConverged = foundation.TrainConverged()
    encode_corpus: outcome.EncodeCorpus = outcome.EncodeCorpus()
    evaluate: outcome.Evaluate = outcome.Evaluate()
    recommend: outcome.Recommend = outcome.Recommend()
    choose_bundle: outcome.ChooseBundle = outcome.ChooseBundle()
    promote: outcome.Promote = outcome.Promote()
    encode_queries: graph.EncodeQueries = graph.EncodeQueries()
    try_variant: graph.TryVariant = graph.TryVariant()
    compare_variants: graph.CompareVariants = graph.CompareVariants()
    first_stage: FirstStage = FirstStage()
    train_reranker: reranking.TrainReranker = reranking.TrainReranker()
    evaluate_passages: reranking.EvaluatePassages = reranking.EvaluatePassages()
    propagate_sections: reranking.PropagateSections = reranking.PropagateSections()
    compare_rerankers: reranking.CompareRerankers = reranking.CompareRerankers()

    def _problems(self) -> Iterator[str]:
        if self.generate_queries.negative_below != self.select_training_set.negative_below:
            yield (
                "generate_queries.negative_below and select_training_set.negative_below must be equal: "
                "set it under shared"
            )
        for step in ("bm25_retrieve", "dense_retrieve", "first_stage"):
            if getattr(self, step).eval_depth < self.evaluate.depth:
                yield (
                    f"{step}.eval_depth must be at least evaluate.depth ({self.evaluate.depth}): "
                    "a shorter ranking would not compare"
                )
        try:
            choice(self)
        except ValueError as error:
            yield str(error)
        depths = [each.get("negative_depth", 0) for each in self.train_reranker.systems.values()]
        if (deepest := max([self.train_reranker.negative_depth, *depths])) > self.bm25_retrieve.train_depth:
            yield (
                f"bm25_retrieve.train_depth must be at least train_reranker.negative_depth ({deepest}): "
                "there are no more hits to draw from"
            )
        if isinstance(self.train_reranker.depth, int) and self.train_reranker.depth > self.bm25_retrieve.eval_depth:
            yield (
                f"bm25_retrieve.eval_depth must be at least train_reranker.depth ({self.train_reranker.depth}): "
                "there are no more hits to re-rank"
            )
        if self.promote.measure not in self.evaluate.measures:
            yield (
                f"promote.measure ({self.promote.measure}) must be one of evaluate.measures "
                f"({', '.join(self.evaluate.measures)})"
            )
        if self.evaluate.baseline == DUAL_ENCODER not in self.recommend.order:
            yield f"recommend.order needs {DUAL_ENCODER}, which is evaluate.baseline: other systems are held against it"
        if self.train_dual_encoder.start_from == "dual_encoder":
            yield "train_dual_encoder.start_from = dual_encoder: M_de cannot start from itself: set dpr or backbone"
        if self.train_dual_encoder.start_from == "dpr":
            for key in (*Backbone.model_fields, "share_encoders"):
                if getattr(self.train_dual_encoder, key) != getattr(self.train_dpr, key):
                    yield (
                        f"train_dual_encoder.{key} must equal train_dpr.{key} with start_from: dpr "
                        "(set it under shared), or start from the backbone"
                    )


_SECTIONS = tuple(Settings.model_fields)
FOUNDATION = _SECTIONS[: _SECTIONS.index("build_graph") + 1]
"""Steps from raw text to the graph. The pipelines `train` and `ablation` share the results of these steps."""
PIPELINES: dict[str, tuple[str, ...]] = {
    "train": (
        *FOUNDATION,
        "choose_graph",
        "encode_with_labels",
        "train_gnn",
        "encode_corpus",
        "evaluate",
        "recommend",
        "promote",
    ),
    "update": ("ingest", "build_graph", "encode_with_labels", "encode_corpus", "choose_bundle"),
    "ablation": (*FOUNDATION, "encode_queries", "try_variant", "compare_variants"),
    "rerank": (
        "ingest",
        "bm25_retrieve",
        "first_stage",
        "train_query_generator",
        "generate_queries",
        "select_training_set",
        "score_candidates",
        "train_reranker",
        "evaluate_passages",
        "propagate_sections",
        "compare_rerankers",
    ),
}
"""Pipeline → its steps, in order. The settings of a pipeline are the settings of its steps."""
SHARDED = ("bm25_retrieve", "dense_retrieve", "score_candidates", "generate_queries")
"""Steps whose work several tasks can share (`Sharded`)."""
ON_NODES = ("train_gnn",)
"""Trainings that several pods can share (`OnNodes`)."""
NOTHING = "nothing"
"""The entry of a loop without systems, whose steps are not asked for. kfp.local collects nothing from an empty loop."""
ORIGIN = ("run.data", "run.settings", "run.code")
"""Names of the digests of a whole run, in `promote`'s source digests and in the tags of a registered version."""


class StepArguments(BaseModel):
    """The JSON argument of a component; the artifacts are its other arguments.

    The result of a step does not depend on the digests. KFP's cache compares arguments only, so the digests make a step
    run again when its code, its data source or its backbone has changed. `promote` also tags the registered version
    with the digests of the whole run (`ORIGIN`), so that a retraining knows whether anything has changed.
    """

    settings: dict[str, Any] = {}
    code_digest: str = ""
    source_digests: dict[str, str] = {}
    label: str = ""
    asked: bool = True
    """Both as of the `Call`."""

    def title(self, step: str) -> str:
        """Returns the name of the call in the console and in MLflow."""
        return f"{step}: {self.label}" if self.label else step


class Call(NamedTuple):
    """One call of a step in a pipeline."""

    step: str
    settings: StepSettings
    label: str = ""
    """Identifies the call if a pipeline calls the step more than once."""
    asked: bool = True
    """False: the step only writes empty artifacts, because the settings ask for nothing that needs its result."""


def calls(settings: Settings, steps: Iterable[str]) -> dict[str, Call]:
    """Returns {parameter of a pipeline: its call}, in the order of the pipeline.

    Each of `steps` is called with the settings of its own section; one in `SHARDED` as `shared_calls` says, one in
    `ON_NODES` as `node_calls` says, `encode_with_labels` once for each kind, `evaluate` adds the calls of
    `ranking_calls`, with that of `recommend`, and `train_reranker` those of `reranking_calls`.
    """
    found: dict[str, Call] = {}
    steps = tuple(steps)
    for step in steps:
        if step == "evaluate":
            found |= ranking_calls(settings)
        elif step == "recommend":
            continue  # among the calls of `evaluate`
        elif step == "choose_bundle":  # of an update
            found |= {**bundling_calls(settings), step: Call(step, settings.choose_bundle)}
        elif step == "build_graph" and "choose_graph" in steps:
            found[step] = Call(step, graph.largest_graph(settings.build_graph, choice(settings).tried))
        elif step == "choose_graph":
            found[step] = Call(step, choice(settings))
        elif step == "encode_with_labels":
            found |= label_calls(settings)
        elif step == "train_reranker":
            found |= reranking_calls(settings, [settings.train_reranker.kind])
        elif step in SHARDED:
            found |= shared_calls(step, getattr(settings, step))
        elif step in ON_NODES:
            found |= node_calls(step, getattr(settings, step))
        else:
            found[step] = Call(step, getattr(settings, step))
    return found


def shared_calls(step: str, settings: Sharded, asked: bool = True) -> dict[str, Call]:
    """Returns the calls of a step's tasks, STEP.0 and so on, and of the merge of their outputs, `merge_STEP`.

    The parameter STEP of a pipeline is the list of the tasks' arguments.
    """
    count = settings.shards if asked else 1
    labels = [f"{number + 1} of {count}" if count > 1 else "" for number in range(count)]
    tasks = [settings.model_copy(update={"shard": number}) for number in range(count)]
    found = {f"{step}.{i}": Call(step, task, labels[i], asked) for i, task in enumerate(tasks)}
    return {**found, f"merge_{step}": Call("merge", Merge(), step, asked)}


def node_calls(step: str, settings: OnNodes) -> dict[str, Call]:
    """Returns the calls of the pods that train together, and of the merge, as `shared_calls`."""
    found, count = {f"{step}.0": Call(step, settings)}, settings.nodes
    if count > 1:
        pods = [settings.model_copy(update={"node": number}) for number in range(count)]
        found = {f"{step}.{i}": Call(step, pod, f"node {i + 1} of {count}") for i, pod in enumerate(pods)}
    return {**found, f"merge_{step}": Call("merge", Merge(), step)}


def by_parameter(arguments: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Returns {parameter of a pipeline: argument, or the list of a step's tasks} of the arguments of `calls`."""
    found: dict[str, Any] = {}
    for name, argument in arguments.items():
        step, dot, _ = name.partition(".")
        if dot:
            found.setdefault(step, []).append(argument)
        else:
            found[name] = argument
    return found


def choice(settings: Settings) -> graph.ChooseGraph:
    """Returns the settings of `choose_graph` with its variants in full."""
    return settings.choose_graph.of(settings.build_graph, settings.train_gnn, settings.promote.measure)


def label_calls(settings: Settings) -> dict[str, Call]:
    """Returns {parameter of a pipeline: call} of `encode_with_labels`, for every kind; a kind may be not asked for."""
    own = settings.encode_with_labels
    shared = {**_bundled(settings), "measure": settings.evaluate.measures[0]}
    return {
        f"encode_query_{kind}": Call(
            "encode_with_labels",
            own.model_copy(update={**shared, "kind": kind, "kinds": (kind,)}),
            system,
            asked=kind in own.kinds,
        )
        for kind, system in labels.LABEL_SYSTEMS.items()
    }


def _bundled(settings: Settings) -> dict[str, Any]:
    """Returns the settings of BM25 and of the index that all bundles of a run share."""
    corpus = settings.encode_corpus
    return {name: getattr(corpus, name) for name in ("bm25", *Lexical.model_fields, *outcome.IndexKind.model_fields)}


def bundling_calls(settings: Settings) -> dict[str, Call]:
    """Returns {parameter of a pipeline: call} of the steps that make bundles of dual encoders as they are."""
    shared, asked = {**settings.encode_corpus.speed, **_bundled(settings)}, settings.train_converged.epochs > 0
    shared["vector_type"] = settings.build_graph.vector_type
    systems = {"bundle_dual_encoder": (DUAL_ENCODER, True), "bundle_converged": (CONVERGED, asked)}
    return {
        name: Call("bundle_dual_encoder", outcome.BundleDualEncoder(system=system, **shared), system, is_asked)
        for name, (system, is_asked) in systems.items()
    }


def ranking_calls(settings: Settings) -> dict[str, Call]:
    """Returns {parameter of the training pipeline: call} of the steps that rank, compare or show systems, in order.

    The section `evaluate` says how systems are ranked and compared; the other steps' settings are derived from it.
    """
    evaluate, dual_encoder = settings.evaluate, settings.train_dual_encoder
    speed, depth = evaluate.speed, evaluate.depth
    untrained = Rank(
        system=UNTRAINED, depth=depth, backbone=evaluate.untrained_backbone, **speed,
        query_length=dual_encoder.query_length, passage_length=dual_encoder.passage_length,
    )  # fmt: skip
    rerank = outcome.Rerank(system=CROSS_ENCODER, depth=max(1, evaluate.rerank_depth), **speed)
    fuse = Fuse(measure=evaluate.measures[0], depth=depth)
    ranked, fused = {}, {}
    for kind, system in labels.LABEL_SYSTEMS.items():
        given = kind in settings.encode_with_labels.kinds
        ranked[f"rank_query_{kind}"] = Call("rank", Rank(system=system, depth=depth, **speed), system, given)
        fused[f"fuse_query_{kind}"] = Call("fuse", fuse, system, given)
    judged = {"measure": settings.promote.measure, "bm25": settings.encode_corpus.bm25}
    bundled = bundling_calls(settings)
    further, asked = settings.train_converged.of(dual_encoder), bundled["bundle_converged"].asked
    return {
        "train_converged": Call("train_dual_encoder", further, CONVERGED, asked),
        **bundled,
        "rank_untrained": Call("rank", untrained, UNTRAINED),
        "rank_dual_encoder": Call("rank", Rank(system=DUAL_ENCODER, depth=depth, **speed), DUAL_ENCODER),
        "rank_converged": Call("rank", Rank(system=CONVERGED, depth=depth, **speed), CONVERGED, asked),
        **ranked,
        "rank_gnn_encoder": Call("rank", Rank(system=GNN_ENCODER, depth=depth, **speed), GNN_ENCODER),
        "rerank": Call("rerank", rerank, asked=evaluate.rerank_depth > 0),
        "fuse_dual_encoder": Call("fuse", fuse, DUAL_ENCODER),
        "fuse_converged": Call("fuse", fuse, CONVERGED, asked),
        **fused,
        "fuse_gnn_encoder": Call("fuse", fuse, GNN_ENCODER),
        "evaluate": Call("evaluate", evaluate),
        "recommend": Call("recommend", settings.recommend.model_copy(update=judged)),
        "choose_bundle": Call("choose_bundle", settings.choose_bundle),
        "measure_latency": Call("measure_latency", outcome.MeasureLatency()),
        "report": Call("report", outcome.Report(**speed)),
    }


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
        "train_query_generator": Call("train_query_generator", settings.train_query_generator, asked=asked),
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
        in_documents = own.kind in DOCUMENT_KINDS
        loops["document_systems" if in_documents else "distilled_systems" if taught else on_labels].append(name)
    return {loop: names or [NOTHING] for loop, names in loops.items()}


def titles(settings: Settings) -> tuple[str, ...]:
    """Returns the titles of the training pipeline's calls, in order."""
    made = calls(settings, PIPELINES["train"]).values()
    return tuple(StepArguments(label=call.label).title(call.step) for call in made)


_TRAINING_CALLS = calls(Settings(), PIPELINES["train"]).values()
TRAINING: tuple[str, ...] = tuple(dict.fromkeys(call.step for call in _TRAINING_CALLS))
"""The steps of the training pipeline, in order, including steps without their own section."""
TITLES = titles(Settings())
"""The titles of the training pipeline's calls with the default settings."""
STEP_SETTINGS: dict[str, type[StepSettings]] = {step: type(section) for step, section in Settings()}
"""Step → its settings class."""
_RERANKING_CALLS = calls(Settings(), PIPELINES["rerank"]).values()
STEP_SETTINGS |= {call.step: type(call.settings) for call in (*_TRAINING_CALLS, *_RERANKING_CALLS)}
ON_CLUSTERS = {"train": TRAINING, "rerank": tuple(dict.fromkeys(call.step for call in _RERANKING_CALLS))}
"""Pipeline that runs on a cluster, too → its steps."""
CLUSTER_STEPS: tuple[str, ...] = tuple(dict.fromkeys(step for steps in ON_CLUSTERS.values() for step in steps))
"""The steps of these pipelines, each once."""
