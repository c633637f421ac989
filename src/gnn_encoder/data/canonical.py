"""From a source to the canonical dataset, in one reading: everything wrong is counted on the way.

Passages are streamed to Parquet a row group at a time. Besides that, memory holds every passage id
as Arrow text and its line (some 20 bytes a passage), and for a moment Arrow's hash table over the ids
(some 60 bytes a passage), which finds duplicates and joins labels to rows exactly: about 0.7 GB for
MS MARCO's 8.8 million. Queries and labels are held as Arrow columns.
"""

from collections.abc import Callable

from gnn_encoder.artifacts import DatasetWriter, Draft
from gnn_encoder.data.corpus import Corpus
from gnn_encoder.data.findings import DataReport
from gnn_encoder.data.questions import Questions
from gnn_encoder.data.rows import Source
from gnn_encoder.data.validation import Kind, Problems, refusal
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


def canonicalize(
    source: Source,
    settings: Ingest,
    *,
    draft: Draft | None = None,
    advance: Callable[[int], None] | None = None,
) -> DataReport:
    """Read a source to its end and write it into a draft; without one, only look.

    Args:
        source: what to read.
        settings: which queries to take, and whether bad rows are left out or, where there is a draft, refused.
        draft: the dataset to be.
        advance: told how much of `source.work` was done.

    Raises:
        UserError: there is a draft, and problems that leaving rows out does not cover.
    """
    drop = settings.on_bad_rows == "drop"
    problems = Problems()
    corpus = Corpus(problems)
    writer = DatasetWriter(draft) if draft else None
    try:
        corpus.read(source, writer, advance)
        duplicates = corpus.find_duplicates()
        if duplicates.any() and (drop or not draft):
            # Only now is it known which rows to leave out: read again. The first file is overwritten.
            if draft and writer:
                writer.close()
                writer = DatasetWriter(draft)
            corpus = Corpus(Problems(), skip=duplicates)
            corpus.read(source, writer, None)
        if not len(corpus.ids) and not problems.count(Kind.MISSING_FILE):
            problems.add(Kind.EMPTY_CORPUS, corpus.file or source.name)
        questions = Questions.read(source, corpus.ids, settings, problems)
        report = DataReport(
            source=source.name,
            format=source.format,
            passages=len(corpus.ids),
            **questions.counts(len(corpus.ids)),
            passage_words=corpus.mean_words,
            problems=problems.all(),
            remarks=[*source.remarks, *questions.remarks],
            facts=source.facts,
        )
        if draft and report.problems and (report.fatal or not drop):
            raise UserError(refusal(source.name, report.problems))
        if writer:
            questions.write(writer)
    finally:
        if writer:
            writer.close()
    return report
