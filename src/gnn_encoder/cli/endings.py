"""The end of a run: what to use, how to use it, and where to look."""

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from gnn_encoder.artifacts import Bundle, Dataset, Report, read_manifest
from gnn_encoder.cli.options import DEFAULT_ROOT
from gnn_encoder.engines.local_run import Outcome
from gnn_encoder.errors import printable
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.report.table import recommended
from gnn_encoder.settings.rungs import AS_IT_IS, TRAINING, height, rung_named

if TYPE_CHECKING:
    from gnn_encoder.cli.console import Lines


def show_table(tables: Callable[[dict[str, Any]], RenderableType], outcome: Outcome, output: str = "report") -> None:
    """Shows the tables of a report's figures, and the path of its page. `output` names the report among the outputs."""
    report = Report.read(outcome.outputs[output])
    screen = Console()
    screen.print()
    screen.print(tables(report.metrics))
    screen.print(f"\nreport     {report.page}", markup=False, highlight=False, soft_wrap=True)
    if bundle := outcome.outputs.get("bundle"):
        command = f"gnn-encoder search --rerank --bundle {shlex.quote(str(bundle))} QUESTION"
        screen.print(f"bundle     {bundle}\nsearch     {command}", markup=False, highlight=False, soft_wrap=True)
    if decision := outcome.outputs.get("decision"):
        headline = read_manifest(decision).metrics["headline"]
        screen.print(f"decision   {headline}", markup=False, highlight=False, soft_wrap=True)


def show_update(outcome: Outcome, former: Path) -> None:
    """Shows the result of an update, the path of its bundle, and how to compare it with the earlier bundle."""
    bundle = outcome.outputs["bundle"]
    screen, words = Console(), ["evaluate", "--bundle", str(former), "--bundle", str(bundle)]
    words += ["--dataset", str(outcome.outputs["dataset"])]
    system, headline = Bundle.read(bundle).serving.system, read_manifest(bundle).metrics["headline"]
    screen.print(f"\n{headline}\nbundle     {bundle}\nsystem     {system}", soft_wrap=True)
    screen.print(f"forgotten or gained: gnn-encoder {shlex.join(words)}", markup=False, highlight=False, soft_wrap=True)


def show_results(screen: "Lines", root: Path, outcome: Outcome, missing: str | None = None) -> None:
    """Shows the end of a run: what to use, how to use it, and where to look.

    `missing`: the rungs of a climb that did not fit its time, in words; None: the run was no climb.
    """
    report, data = Report.read(outcome.outputs["report"]), Dataset(outcome.outputs["dataset"])
    metrics, bundle = report.metrics, str(outcome.outputs["bundle"])
    (question,) = data.query_texts(data.query_rows("test")[:1]) or ["your question"]
    chosen = "" if root == DEFAULT_ROOT else f" --root {shlex.quote(str(root))}"
    program = shlex.quote("gnn-encoder" if shutil.which("gnn-encoder") else sys.argv[0])
    decision = read_manifest(outcome.outputs["decision"]).metrics.get("headline", "")
    lines = {
        **({"use": _advice(metrics)} if metrics.get("recommendation") else {}),
        "search": f"{program} {shlex.join(_search(printable(question), bundle))}",
        "serve": f"{program} {shlex.join(['serve', '--bundle', bundle])}",
        "decision": decision.partition("; ")[0],
        "report": str(report.page),
        "dashboard": f"{program} dashboard{chosen}",
        "log": str(outcome.log),
    }
    if missing is not None:
        lines["more time"] = _more_time(metrics, outcome, missing)
    screen.end(metrics, outcome, lines)


def climbs_on(preset: str, until: str, rung: str, budget: str) -> str:
    """Says what climbs on from the last rung of a run with `--until`; empty after a training. `budget`: of that run."""
    if height(rung) >= height(TRAINING):
        return ""
    if height(rung) < height(rung_named(until)) and height(rung) <= height(AS_IT_IS):
        return "none: the next rung needs labelled training queries, or --generator titles"
    return f"{f'--budget {budget}' if preset == 'auto' else '--until training'} instead of --until {until} climbs on"


def figure_of(metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the recommended system's figure, and what queries it is of."""
    split, advice = metrics["headline_split"], metrics["recommendation"]
    value = metrics["results"][split][advice["system"]][advice["measure"]]
    return {"value": value, "split": split, "queries": metrics["queries"][split], "kind": _kind(metrics, split)}


def _search(question: str, bundle: str) -> list[str]:
    """Returns the words of the command that asks a question, which may begin as an option does."""
    named = ["--bundle", bundle]
    return ["search", *named, "--", question] if question.startswith("-") else ["search", question, *named]


def _advice(metrics: dict[str, Any]) -> str:
    """Returns `Linear fusion: MRR@10 0.864 on 137 labelled test queries; 0.810 on the 66 labelled dev queries that
    chose it`."""
    advice, figure = metrics["recommendation"], figure_of(metrics)
    text = f"{advice['system']}: {mean_name(advice['measure'])} {figure['value']:.3f} on {figure['queries']:,} "
    text += f"{figure['kind']} {figure['split']} queries"
    if advice["system"] in {one["system"] for one in advice["standings"]}:
        # The table's figure: that of the standings may be of weighted queries (`evaluation.shift`).
        on_dev, kind = metrics["results"]["dev"][advice["system"]][advice["measure"]], _kind(metrics, "dev")
        text += f"; {on_dev:.3f} on the {advice['queries']:,} {kind} dev queries that chose it"
    return text


def _kind(metrics: dict[str, Any], split: str) -> str:
    return "generated" if split in metrics.get("written", ()) else "labelled"


def _more_time(metrics: dict[str, Any], outcome: Outcome, missing: str) -> str:
    """Says what more time would try, and from where on the queries show gains."""
    split = metrics["headline_split"]
    least = metrics["detectable"].get(split, {}).get(recommended(metrics), {})
    shown = [value for value in least.values() if value]  # 0: all queries differ alike, so nothing is known
    seen = f"; the {split} queries show gains from {min(shown):.3f}" if shown else ""
    line = missing or "a preset that trains longer, or a larger encoder (--encoder)"
    if outcome.is_late:
        line = f"the time was up during {outcome.failed_step or 'the next step'}: the same command goes on from there"
    return f"{line}{seen}"
