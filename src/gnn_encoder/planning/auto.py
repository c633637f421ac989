"""The plan of a climb without a preset: read the data, measure the machine, forecast the rungs, and keep all in a file.

A run that is interrupted and started again must not plan again, because measured rates vary and other settings would
train again. So the plan is a file under the root, whose name is a digest of the data, the budget and the user's
settings.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from gnn_encoder.artifacts import Dataset
from gnn_encoder.artifacts.folder import digest_of
from gnn_encoder.data import source_digest, temporary_dataset
from gnn_encoder.errors import UserError
from gnn_encoder.models.address import LONGEST, AddressEncoder
from gnn_encoder.models.backbone import outline, published_tokens, readable_tokens
from gnn_encoder.models.check import check_models
from gnn_encoder.pipelines.ladder import ladder
from gnn_encoder.planning import AUTO
from gnn_encoder.planning.data_size import with_written
from gnn_encoder.planning.facts import DataFacts, data_facts
from gnn_encoder.planning.plan import DEV_QUERIES, DoesNotFit, pair_length, plan_run
from gnn_encoder.planning.plan_file import PlannedClimb, read_plan, write_plan
from gnn_encoder.planning.rates import DROPOUT, Rates, machine, measure_rates
from gnn_encoder.planning.rung_times import GUARD, Candidate, affordable, reranking_seconds, rung_ends
from gnn_encoder.settings.foundation import Encode
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings
from gnn_encoder.settings.rungs import AS_IT_IS, LABELS, RERANKING, RUNGS, TRAINING, WORDS, height
from gnn_encoder.settings.shared import MINILM, is_address
from gnn_encoder.settings.systems import UNTRAINED
from gnn_encoder.settings.written import WriteQueries

LADDER = {"index_bm25": {"k1": 0.9, "b": 0.4}}
"""BM25's settings without a preset, as in Anserini. On training queries, each out of its fold, the linear fusion has
MRR@10 0.736 on `obliqa` and 0.833 on `scifact` with them, 0.732 and 0.833 with 1.5 and 0.75."""
PLANNED = ("ingest", "shared", "encode", "write_queries", "select_queries")
"""Sections whose overrides the plan depends on."""
SHORTEST_TRAINING = 180.0
"""Seconds of a budget below which no training is planned, and its speed is not measured."""
RERANKED_HITS = (100, 50, 20)
"""Hits of a query that may be re-ranked; the most that fit are."""
PROMPT_TOKENS = 220
"""Of a prompt for queries without its passage, about."""
CHARACTERS_OF_TOKEN = 4
"""Characters of a token, about, in English and other languages with spaces."""
SERVED = 20_000.0
"""Tokens a second of an encoder at an address in a forecast; a longer wait is cut by the budget, and kept."""


@dataclass(frozen=True)
class Survey:
    """What the plan of a climb rests on."""

    settings: Settings
    """With the user's changes to the sections in `PLANNED`; `encode` names the model of each address."""
    services: Mapping[str, AddressEncoder]
    """Name in the settings → the encoder at an address."""
    until: str
    """The rung that is asked for."""
    facts: DataFacts
    """With texts in the backbone's tokens."""
    characters: int
    """What each service is sent."""
    reachable: Sequence[str]
    """The rungs that data and settings allow, from the lowest."""
    trains: bool
    """Whether a training may fit the budget, so that its speed was measured."""
    named: Sequence[Candidate]
    trained: Sequence[Candidate]
    """What a training or a re-ranker may start from; the last one with the backbone's name is the backbone."""

    @property
    def backbone(self) -> str:
        """The model that is trained."""
        return self.settings.train_dual_encoder.backbone


def planned_climb(
    overrides: Sequence[str], until: str, budget: float, root: Path, show: Callable[[str, str], None]
) -> PlannedClimb:
    """Returns the plan of a run with `overrides` (`step.setting=value`) in a writable root.

    Args:
        until: the highest rung.
        budget: seconds; infinite: no limit.
        show: gets each line for people: its name and text.

    Raises:
        UserError: no dataset is given, its source is not usable, or a pretrained model would be read wrongly.
    """
    settings = unplanned(overrides)
    if settings.encode.elsewhere:  # there are no weights
        until = LABELS if until == TRAINING else until
        below = settings.weigh_reranker.model_copy(update={"above": LABELS})
        settings = settings.model_copy(update={"weigh_reranker": below})
    check_models(ladder(settings, until).nodes)
    facts_of_key = {"data": source_digest(settings.ingest), "budget": str(budget), "settings": sorted(overrides)}
    path = root / AUTO / f"{digest_of({**facts_of_key, 'until': until})[:12]}.yaml"
    if path.is_file():
        former = read_plan(path)
        show("plan", f"of an earlier start, up to {former.until}: {path}")
        return former
    survey = _survey(settings, until, budget)
    fixed = any(change.startswith("encode.passage_length=") for change in overrides)
    plan = _Plan(survey, budget, fixed)
    plan.say_what_was_measured()
    if TRAINING in survey.reachable and LABELS in plan.rungs:
        plan.add_training()
    if RERANKING in survey.reachable and LABELS in plan.rungs:
        plan.add_reranking()
    planned = plan.written(path)
    for name, line in plan.lines.items():
        show(name, line)
    option = planned.until.replace(" ", "-")
    show("plan", f"{path}; change a setting with --set, or edit it and give --preset {path} --until {option}")
    return planned


def unplanned(overrides: Sequence[str]) -> Settings:
    """Returns the settings that a plan starts from; the encoder is the backbone unless the overrides name one."""
    changes = [override for override in overrides if override.partition(".")[0] in PLANNED]
    base = {"shared": {"backbone": MINILM, "generator": MINILM}, **LADDER}
    settings = parse_settings(base, changes, source=AUTO)
    if not settings.ingest.dataset:
        raise UserError("no data: give --dataset, or a --preset that names its own (gnn-encoder presets)")
    if any(change.startswith("encode.encoder=") for change in changes):
        return settings
    backbone = settings.train_dual_encoder.backbone
    return parse_settings(base, [f"encode.encoder={backbone}", *changes], source=AUTO)


def _survey(settings: Settings, until: str, budget: float) -> Survey:
    """Asks the services, reads the data, and measures each encoder on this machine."""
    encode, services = settings.encode.model_copy(update={"others": ()}), dict[str, AddressEncoder]()
    if until != WORDS:
        encode, services = _with_models(settings.encode)
    backbone, elsewhere, seed = settings.train_dual_encoder.backbone, settings.encode.elsewhere, settings.ingest.seed

    def facts_for(data: Dataset, encoder: str) -> DataFacts:
        facts = data_facts(data, encoder, seed, encode)
        queries = with_written(facts.queries, facts.passages, settings.write_queries, settings.select_queries)
        return replace(facts, queries=queries, labels=facts.labels + queries["train"] - facts.queries["train"])

    with temporary_dataset(settings.ingest_of(trains=False)) as (data, _):
        facts = facts_for(data, backbone)
        highest = until if facts.queries["train"] else min(until, AS_IT_IS, key=height)
        left_out = ([TRAINING] if elsewhere else []) + ([] if facts.queries["dev"] else [RERANKING])
        reachable = [rung for rung in RUNGS[: RUNGS.index(highest) + 1] if rung not in left_out]
        trains = TRAINING in reachable and SHORTEST_TRAINING <= budget < math.inf
        training = settings.train_dual_encoder if trains else None

        def candidate(name: str, encoder: str) -> Candidate:
            if encode.vectors or is_address(encoder):
                return Candidate(name, encoder, facts, Rates(machine(), math.inf if encode.vectors else SERVED, 0.0))
            own_facts = facts if encoder == backbone else facts_for(data, encoder)
            return Candidate(name, encoder, own_facts, measure_rates(data, encoder, seed, training))

        named = [candidate(name, entry.encoder) for name, entry in encode.by_name.items()]
        trained = [*named]
        if (trains or RERANKING in reachable) and (encode.vectors or backbone not in (one.encoder for one in named)):
            trained.append(Candidate("", backbone, facts, measure_rates(data, backbone, seed, training)))
        sent = _characters(data) if services else 0
    settings = settings.model_copy(update={"encode": encode})
    return Survey(settings, services, until, facts, sent, reachable, trains, named, trained)


class _Plan:
    """A plan while it is made.

    rungs, ends  the rungs that fit, and the seconds from the start to the end of each, also of rungs that do not fit
    tree, calls  the settings, and the seconds of calls by title
    missing      the seconds that each rung needs that does not fit
    lines        for people, by name
    """

    def __init__(self, survey: Survey, budget: float, fixed: bool) -> None:
        """Chooses the encoders, and the length of passages unless it is `fixed`."""
        self.survey, self.budget, self.lines = survey, budget, dict[str, str]()
        encode, backbone = survey.settings.encode, survey.backbone
        fixed = fixed or bool(encode.vectors) or is_address(encode.encoder)
        self.kept, self.length = affordable(survey.named, survey.reachable, budget, encode.passage_length, fixed)
        self.ends = {rung: end for rung, end in rung_ends(self.kept, self.length).items() if rung in survey.reachable}
        self.missing = {rung: 1.1 * end for rung, end in self.ends.items() if end > budget}
        self.rungs = [rung for rung in self.ends if rung == WORDS or rung not in self.missing]
        self.local = [] if encode.vectors else [one for one in self.kept if not is_address(one.encoder)]
        # A training has lengths of its own.
        self.tree: dict[str, dict[str, Any]] = {"shared": {"backbone": backbone, "generator": backbone}, **LADDER}
        self.tree["encode"] = {"encoder": encode.encoder}
        if len(self.kept) > 1:
            self.tree["encode"]["others"] = [one.encoder for one in self.kept[1:]]
        if encode.vectors:
            self.tree["encode"]["vectors"] = encode.vectors
        if self.local:
            lengths = {"passage_length": self.length, "query_length": encode.query_length}
            most = min(published_tokens(one.encoder, max(lengths.values())) for one in self.local)
            self.tree["encode"] |= {name: min(tokens, most) for name, tokens in lengths.items()}
        self.calls = dict[str, float]()
        if self.rungs != [WORDS]:
            titles = [f"encode: {one.name}" if len(self.kept) > 1 else "encode" for one in self.kept]
            self.calls = {title: one.seconds(self.length) for title, one in zip(titles, self.kept, strict=True)}

    def say_what_was_measured(self) -> None:
        """Adds the lines about machine, data and encoders."""
        survey, encode, facts = self.survey, self.survey.settings.encode, self.survey.facts
        speeds = f"; encodes {_speeds(self.local, 'encoding')} tokens a second" if self.local else ""
        speeds += f" and trains {_speeds(self.local, 'training')}" if survey.trains else ""
        counts = ", ".join(f"{count:,} {split}" for split, count in facts.queries.items())
        counts += " (about, with those that are written)" if survey.settings.write_queries.generator else ""
        self.lines["machine"] = survey.named[0].rates.machine + speeds
        self.lines["data"] = f"{facts.passages:,} passages; labelled queries: {counts}"
        if encode.others:
            whole = rung_ends(survey.named, encode.passage_length)
            needed = max(whole[rung] for rung in survey.reachable if rung in whole) / GUARD
            others = "the best on dev, together with BM25, goes on"
            if left_out := survey.named[len(self.kept) :]:
                others = f"{_names(left_out)} would not fit (about --budget {math.ceil(needed / 60)}m)"
            self.lines["encoders"] = f"{_names(self.kept)}; {others}"
        if encode.elsewhere:
            whose = "encoder's weights" if len(survey.named) == 1 else "weights of one encoder"
            self.lines[TRAINING] = f"none: the {whose} are elsewhere"
        services = [survey.services[one.encoder] for one in self.kept if one.encoder in survey.services]
        if services and not encode.vectors:
            models = (f"{one.model} at {one.address}, {one.width} numbers a vector" for one in services)
            tokens = (
                f"about {survey.characters / CHARACTERS_OF_TOKEN:,.0f} tokens, of {survey.characters:,.0f} characters"
            )
            for_each = " for each of them" if len(services) > 1 else ""
            self.lines |= {"encoder": "; ".join(models), "to pay": f"{tokens}{for_each}; each text is sent once"}
        if survey.settings.write_queries.is_asked:
            self.lines["to write"] = _writing(survey.settings.write_queries, facts)
        if not facts.queries["train"] and height(survey.until) > height(AS_IT_IS):
            self.lines[LABELS] = (
                "none, and no training: the data have no labelled training query; --generator titles would write some"
            )

    def add_training(self) -> None:
        """Adds the training of the rest of the budget, or what it needs."""
        try:
            if not self.survey.trains:
                raise DoesNotFit("no training fits", None)
            slowest = max(self.survey.trained, key=lambda one: one.facts.mean_passage(self.length) / one.rates.training)
            left = self.budget - self.ends[LABELS]
            plan = plan_run(slowest.facts, slowest.rates, left, self.survey.backbone)
        except DoesNotFit as error:
            self.missing[TRAINING] = (error.needed or SHORTEST_TRAINING) + self.ends[LABELS]
            return
        self.rungs.append(TRAINING)
        self.tree = _merged(plan.settings, self.tree)
        self.calls |= {title: seconds for title, seconds in plan.calls.items() if title != f"rank: {UNTRAINED}"}
        self.lines |= {name: reason for name, reason in plan.reasons.items() if name not in self.lines}
        self.ends[TRAINING] = self.ends[LABELS] + sum(plan.seconds.values())

    def add_reranking(self) -> None:
        """Adds the re-ranking of as many hits as fit, or what the fewest need."""
        facts, backbone = self.survey.facts, self.survey.backbone
        rates = next(one.rates for one in reversed(self.survey.trained) if one.encoder == backbone)
        drawn = self.tree.get("ingest", {}).get("max_trained_queries", 0) or facts.drawn
        top, pair = self.rungs[-1], pair_length(int(self.tree["encode"].get("passage_length", self.length)))
        pair = min(pair, readable_tokens(outline(backbone), pair))
        for depth in RERANKED_HITS:
            seconds_of_calls = reranking_seconds(facts, rates, pair, depth, drawn)
            self.ends[RERANKING] = self.ends[top] + sum(seconds_of_calls.values())
            if self.ends[RERANKING] <= GUARD * self.budget:
                self.tree = _merged(self.tree, _reranker_settings(pair, depth, top))
                self.calls |= {title: seconds for title, seconds in seconds_of_calls.items() if title != RERANKING}
                self.lines[RERANKING] = f"the first {depth} hits of each query, above {top}"
                self.rungs.append(RERANKING)
                return
        self.missing[RERANKING] = self.ends[RERANKING] / GUARD

    def written(self, path: Path) -> PlannedClimb:
        """Writes the plan, with when each table comes and what more time would reach."""
        self.lines["tables"] = ", ".join(f"{rung} after about {_clock(self.ends[rung])}" for rung in self.rungs)
        needed = {rung: math.ceil(seconds / 60) for rung, seconds in self.missing.items()}
        if more := ", ".join(f"{rung} (about --budget {minutes}m)" for rung, minutes in needed.items()):
            self.lines["more time"] = more
        write_plan(path, self.budget, self.tree, self.rungs[-1], self.lines, self.calls)
        return PlannedClimb(path, self.rungs[-1], self.calls, more)


def _writing(settings: WriteQueries, facts: DataFacts) -> str:
    """Says which calls the queries take that a language model writes; the step says it with the prompts themselves."""
    passages, calls = settings.passages_of(facts.passages)
    longest = settings.passage_characters // CHARACTERS_OF_TOKEN
    tokens_in = passages * calls * (PROMPT_TOKENS + facts.mean_passage(longest))
    tokens_out = passages * calls * settings.answer_tokens
    cost = (tokens_in * settings.price_in + tokens_out * settings.price_out) / 1e6
    priced = f", at most {cost:,.2f} at the given price" if cost else ""
    return (
        f"{passages * calls:,} calls for {passages:,} passages, about {tokens_in:,.0f} tokens in, at most "
        f"{tokens_out:,} out{priced}; this takes its time beside the budget"
    )


def _characters(data: Dataset) -> int:
    """Returns how many characters a service is sent: all passages, and all queries."""
    passages = sum(sum(min(len(text), LONGEST) for text in batch.full_texts()) for batch in data.passages.stream())
    return passages + (pc.sum(pc.utf8_length(data.queries.column("text"))).as_py() or 0)


def _with_models(encode: Encode) -> tuple[Encode, dict[str, AddressEncoder]]:
    """Asks each address for its model; returns settings that name the models, and the encoders by these names."""
    names = (encode.encoder, *encode.others)
    services = {name: AddressEncoder.at(name) for name in names if is_address(name)}
    full = {name: f"{service.address}#{service.model}" for name, service in services.items()}
    first, *others = (full.get(name, name) for name in names)
    named = encode.model_copy(update={"encoder": first, "others": tuple(others)})
    return named, {full[name]: service for name, service in services.items()}


def _names(candidates: Sequence[Candidate]) -> str:
    return ", ".join(one.name for one in candidates)


def _speeds(candidates: Sequence[Candidate], rate: str) -> str:
    """Returns a rate of each candidate in words, as `30,000` or `30,000 (minilm), 8,000 (bge-base)`."""
    speeds = {one.name: f"{getattr(one.rates, rate):,.0f}" for one in candidates}
    return ", ".join(f"{speed} ({name})" if len(speeds) > 1 else speed for name, speed in speeds.items())


def _reranker_settings(pair: int, depth: int, below: str) -> dict[str, dict[str, Any]]:
    training = {
        "epochs": 1, "negative_depth": 30, "learning_rate": 2e-4, "head_learning_rate": 1e-3, "pair_length": pair,
        "dev_queries": DEV_QUERIES, "dropout": DROPOUT, "depth": depth,
    }  # fmt: skip
    return {"train_reranker": training, "weigh_reranker": {"above": below}}


def _merged(tree: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {**tree.get(name, {}), **other.get(name, {})} for name in {**tree, **other}}


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
