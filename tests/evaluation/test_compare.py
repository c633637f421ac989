"""`gnn-encoder evaluate`: any system's TREC runs against qrels."""

import gzip
import io
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from command_line import call
from rich.console import Console

from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.compare import compare, comparison_table, notes
from gnn_encoder.evaluation.significance import paired_randomization

MEASURES = ("RR@10", "nDCG@10", "AP", "R@100", "Judged@10")


@pytest.fixture
def files(tmp_path: Path) -> tuple[list[Path], Path]:
    """Three runs, the second better than the others, with ties; 60 queries, graded labels, two queries without one."""
    generator = np.random.default_rng(0)
    labels = {
        f"q{q}": {f"d{d}": int(generator.integers(0, 4)) for d in generator.choice(200, 8, False)} for q in range(60)
    }
    for query in ("q7", "q9"):
        labels[query] = dict.fromkeys(labels[query], 0)
    lines = [f"{q} 0 {d} {label}" for q, judged in labels.items() for d, label in judged.items()]
    (tmp_path / "qrels.txt").write_text("\n".join(lines))
    paths = []
    for name, strength in (("plain.trec", 0), ("better.trec.gz", 3), ("[alike].run", 0)):
        lines = []
        for query in labels:
            if query == "q3" and name == "plain.trec":
                continue
            for rank, document in enumerate(generator.choice(200, 120, False), start=1):
                score = generator.integers(0, 6) + strength * (labels[query].get(f"d{document}", 0) > 0)
                lines.append(f"{query}\tQ0  d{document} {rank} {score} tag")
        data = "\n".join(lines).encode()
        paths.append(tmp_path / name)
        paths[-1].write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    return paths, tmp_path / "qrels.txt"


def by_hand(run: Path, qrels: Path) -> dict[str, dict[str, float]]:
    text = gzip.decompress(run.read_bytes()).decode() if run.suffix == ".gz" else run.read_text()
    scores: dict[str, dict[str, float]] = {}
    for query, _, document, _, score, _ in map(str.split, text.splitlines()):
        scores.setdefault(query, {})[document] = float(score)
    labels: dict[str, dict[str, int]] = {}
    for query, _, document, label in map(str.split, qrels.read_text().splitlines()):
        labels.setdefault(query, {})[document] = int(label)
    return pytrec_eval.RelevanceEvaluator(labels, {"map"}).evaluate(scores)


def test_the_others_are_compared_with_the_first(files: tuple[list[Path], Path]) -> None:
    runs, qrels = files
    comparison = compare(runs, qrels, ("AP",))
    assert (comparison["queries"], comparison["unlabelled"]) == (58, 2)
    assert comparison["without_hits"] == {"plain": 1, "better": 0, "[alike]": 0}
    assert list(comparison["p_values"]) == ["better", "[alike]"]
    assert comparison["p_values"]["better"]["AP"] < 0.001 < 0.05 < comparison["p_values"]["[alike]"]["AP"]
    assert comparison["p_holm"]["better"]["AP"] == pytest.approx(2 * comparison["p_values"]["better"]["AP"])
    plain, better = (by_hand(path, qrels) for path in runs[:2])
    labelled = [q for q in better if q not in ("q7", "q9")]
    differences = [better[q]["map"] - plain.get(q, {"map": 0.0})["map"] for q in labelled]
    by_peer = paired_randomization(np.array(differences)[:, None], 10_000, 1)[0]
    assert comparison["p_values"]["better"]["AP"] == pytest.approx(by_peer, abs=2e-4)
    low, high = comparison["intervals"]["better"]["AP"]
    assert low < comparison["results"]["better"]["AP"] < high
    swapped = compare([runs[1], runs[0]], qrels, ("AP",))
    assert list(swapped["p_values"]) == ["plain"]


def shown(runs: list[Path], qrels: Path, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    comparison = compare(runs, qrels, MEASURES)
    console.print(comparison_table(comparison))
    console.print("\n".join(notes(comparison)), markup=False)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_table(files: tuple[list[Path], Path]) -> None:
    runs, qrels = files
    text = shown(runs, qrels)
    for words in ("MRR@10", "MAP", "Judged@10", "95 % interval", "p (Holm)", "[alike]", "Holm-corrected for 2"):
        assert words in text
    assert "58 queries with a positive label; 2 without one left out" in text
    assert "plain: no hit for 1 queries, which count 0" in text
    better = next(line for line in text.splitlines() if line.startswith("better"))
    assert better.rstrip().endswith("*")
    alone = shown(runs[:1], qrels)
    assert "p (Holm)" not in alone and "gain" not in alone


def test_a_name_that_looks_like_markup_is_shown_as_it_is(files: tuple[list[Path], Path], tmp_path: Path) -> None:
    runs, qrels = files
    odd = [tmp_path / "a\\[" / "b].trec", tmp_path / "b].trec"]
    for path in odd:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(runs[0].read_bytes())
    assert f"\n{odd[0]} " in shown(odd, qrels, width=200)


def test_the_command(files: tuple[list[Path], Path], capsys: pytest.CaptureFixture[str]) -> None:
    runs, qrels = files
    options = [option for run in runs for option in ("--run", str(run))]
    code, out = called(capsys, *options, "--qrels", str(qrels), "--measures", "AP,R@5")
    assert code == 0 and "MAP" in out and "R@5" in out and "nDCG" not in out


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and all output of `gnn-encoder evaluate`."""
    code = call("evaluate", *arguments)
    return code, "".join(capsys.readouterr())


def test_the_command_measures_documents(
    files: tuple[list[Path], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, qrels = files
    options = [f"--run={run}" for run in runs[:2]] + [
        f"--qrels={qrels}",
        "--measures=PRES(doc)@10, MAP(D) R(doc,rel=2)@5",
    ]
    code, shown = called(capsys, *options)
    assert code == 2
    assert (
        shown
        == "error: PRES(doc)@10, MAP(D), R(doc,rel=2)@5: name the file with each passage's document by --documents\n"
    )
    path = tmp_path / "documents.tsv.gz"
    path.write_bytes(gzip.compress("".join(f"d{i}\tdoc{i // 10}\n" for i in range(200)).encode()))
    code, shown = called(capsys, *options, f"--documents={path}", "--test=t")
    assert code == 0
    for words in (
        "PRES(doc)@10",
        "MAP(D)",
        "R(doc,rel=2)@5",
        "\n20 documents\n",
        "differs from plain: p < 0.05, paired t-test",
    ):
        assert words in shown
    path.write_bytes(gzip.compress("".join(f"d{i}\tdoc\n" for i in range(100)).encode()))
    code, shown = called(capsys, *options, f"--documents={path}")
    assert code == 2 and "\n" not in shown.strip()
    assert shown.startswith(f"error: {path} lacks 100 passages of {runs[0]} and {qrels} ('d")


def test_runs_of_other_queries_and_labels_without_a_positive_are_refused(
    files: tuple[list[Path], Path], tmp_path: Path
) -> None:
    runs, qrels = files
    (tmp_path / "other").write_text("elsewhere Q0 d1 1 1.0 tag\n")
    with pytest.raises(UserError, match="has no hit for any query of"):
        compare([tmp_path / "other"], qrels, MEASURES)
    (tmp_path / "none").write_text("q1 0 d1 0\n")
    with pytest.raises(UserError, match="no positive label"):
        compare(runs, tmp_path / "none", MEASURES)
    with pytest.raises(UserError, match="named twice"):
        compare([runs[0], runs[0]], qrels, MEASURES)


def test_hits_with_the_query_s_own_id_count_unless_the_command_is_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in ArguAna, a query is a passage. trec_eval counts such a hit; BEIR's `ignore_identical_ids` leaves it out."""
    (tmp_path / "qrels").write_text("a 0 b 1\nb 0 c 1\nq 0 a 1\n")
    hits = {"a": "abc", "b": "bca", "q": "ab"}
    lines = [f"{query} Q0 {hit} 1 {-rank} t\n" for query, passages in hits.items() for rank, hit in enumerate(passages)]
    (tmp_path / "run").write_text("".join(lines))
    plain = compare([tmp_path / "run"], tmp_path / "qrels", ("RR",))
    assert plain["results"]["run"]["RR"] == pytest.approx((1 / 2 + 1 / 2 + 1) / 3)
    advice = "--ignore-identical-ids leaves them out, as BEIR does"
    assert plain["remarks"] == [f"run: 2 hits have their query's id, counted as in trec_eval; {advice}"]
    left_out = compare([tmp_path / "run"], tmp_path / "qrels", ("RR",), ignore_identical_ids=True)
    assert left_out["results"]["run"]["RR"] == 1
    options = ("--run", str(tmp_path / "run"), "--qrels", str(tmp_path / "qrels"), "--measures", "RR")
    for option, words in (((), "counted as in trec_eval"), (("--ignore-identical-ids",), "query's id, left out")):
        code, shown = called(capsys, *options, *option)
        assert code == 0 and words in shown


def test_an_empty_file_is_a_system_that_found_nothing(files: tuple[list[Path], Path], tmp_path: Path) -> None:
    runs, qrels = files
    (tmp_path / "nothing.trec").write_text("\n")
    comparison = compare([runs[0], tmp_path / "nothing.trec"], qrels, MEASURES)
    assert set(comparison["results"]["nothing"].values()) == {0.0}
    assert comparison["without_hits"]["nothing"] == 58
    assert "nothing: no hit for 58 queries, which count 0" in notes(comparison)
