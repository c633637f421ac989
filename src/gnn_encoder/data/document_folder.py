"""Folders of documents: Markdown, HTML, text, PDF, DOCX, PPTX and EPUB files.

Sections, ids, titles and links are those of `markup`, but a passage is as many paragraphs of a section as
`ingest.passage_words` allow, and never crosses a section's, page's or slide's border. The id of a passage in a PDF is
FILE#page=3:1, so an id without its number is a link to the file, page, slide or section. A passage outside all sections
has the file's name as title.

A file that cannot be read is named in a remark, with the reason; the others are read. Remarks also name the first files
without a passage, and those with a guessed encoding.
"""

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from gnn_encoder.artifacts.texts import is_blank
from gnn_encoder.data.blocks import Block
from gnn_encoder.data.cutting import cut, words_in
from gnn_encoder.data.file_reader import ENDINGS, FileReader, Unreadable
from gnn_encoder.data.markup import LONGEST_HEADING, RENAME, Markup, first_of, folders_below
from gnn_encoder.data.validation import Kind, Problems
from gnn_encoder.errors import printable
from gnn_encoder.settings.foundation import Ingest

SHORTEST = 0.2
"""A section's last passage with a smaller share of the words belongs to the one before."""


class DocumentFolder(Markup):
    """A folder of documents."""

    format = "documents"
    endings = ENDINGS

    def __init__(self, folder: Path, settings: Ingest) -> None:
        super().__init__(folder)
        self._size, self._overlap, self._seconds = (
            settings.passage_words, settings.overlap_words, settings.file_seconds,
        )  # fmt: skip
        self.remarks += _not_read(folder, self._others)
        self._remarks = [*self.remarks]

    def leave_out(self, path: Path) -> None:
        """As `Markup.leave_out`, as a remark."""
        self.remarks.append(f"{str(path.relative_to(self.folder))!a} was not read: {RENAME}")

    def pages(self, problems: Problems) -> Iterator[tuple[Path, str, Iterator[Block]]]:
        """As `Markup.pages`; files that cannot be read are remarks."""
        self.remarks = [*self._remarks]
        reader, bad, read = FileReader(self._seconds), dict[str, str](), 0
        guessed, without = list[str](), list[str]()
        try:
            for path in self.corpora:
                name = path.relative_to(self.folder).as_posix()
                try:
                    content = reader.content(path)
                except Unreadable as error:
                    bad[name] = printable(str(error))
                    continue
                read += 1
                guessed += [name] * content.guessed
                without += [name] * all(_is_heading(block) or is_blank(block.text) for block in content.blocks)
                yield path, name, joined(content.blocks, self._size, self._overlap)
        finally:
            reader.close()
        self.remarks += [f"{name} was not read: {reason}" for name, reason in bad.items()]
        if guessed:
            self.remarks.append(
                f"{len(guessed):,} files are not UTF-8 and were read as Windows-1252: {first_of(guessed)}: convert "
                "them to UTF-8 if they are in another encoding"
            )
        if without:
            self.remarks.append(f"{len(without):,} files have no text for a passage: {first_of(without)}")
        for name, reason in bad.items() if not read else ():
            problems.add(Kind.UNREADABLE, name, detail=reason)

    def pieces(self, text: str) -> list[str]:
        """As `Markup.pieces`; `joined` has cut the text."""
        return [text]

    def untitled(self, name: str) -> str:
        """As `Markup.untitled`: the file's name in words."""
        return " ".join(re.split(r"[\s_-]+", Path(name).stem)).strip()


def joined(blocks: Iterable[Block], size: int, overlap: int = 0) -> Iterator[Block]:
    """Yields headings as they are, and the text between them in blocks of at most `size` words, about.

    Args:
        overlap: words at a block's beginning that end the block before, in the same section.
    """
    waiting: list[tuple[str, Block]] = []
    for block in blocks:
        heading = _is_heading(block)
        if waiting and (heading or block.place != waiting[-1][1].place):
            yield from _passages(waiting, size, overlap)
            waiting = []
        if heading:
            yield block
        else:
            waiting += [(piece, block) for piece in cut(block.text, size)]
    yield from _passages(waiting, size, overlap)


def _is_heading(block: Block) -> bool:
    return bool(block.level) and len(block.text) <= LONGEST_HEADING


def _passages(pieces: list[tuple[str, Block]], size: int, overlap: int) -> Iterator[Block]:
    """The blocks of a section's pieces of text, each with the block that it is of."""
    groups: list[list[tuple[str, Block]]] = []
    words = 0
    for piece, block in pieces:
        count = words_in(piece)
        if not groups or words + count > size:
            groups.append([])
            words = 0
        groups[-1].append((piece, block))
        words += count
    if len(groups) > 1 and words < SHORTEST * size:
        groups[-2:] = [[*groups[-2], *groups[-1]]]
    seen, before = set[int](), ""
    for group in groups:
        text, new = "\n\n".join(piece for piece, _ in group), list[Block]()
        for _, block in group:  # the links and anchors of a block that was cut count once
            if id(block) not in seen:
                seen.add(id(block))
                new.append(block)
        first, tail = group[0][1], _end_of(before, overlap) if overlap else ""
        yield Block(
            0, f"{tail}\n\n{text}" if tail else text, first.line, place=first.place,
            anchors=[name for block in new for name in block.anchors],
            links=[link for block in new for link in block.links],
        )  # fmt: skip
        before = text


def _end_of(text: str, count: int) -> str:
    """The last words of a text, as `words_in` counts them, about."""
    end = " ".join(text.split()[-count:])
    return end if words_in(end) <= count else end[-2 * count :]


def _shown(ending: str) -> str:
    """A file's ending, which may have bytes that are no text."""
    return ending if ending.isprintable() else ascii(ending)[1:-1]


def _not_read(folder: Path, read: Container[Path]) -> Iterator[str]:
    """A remark on the files with other endings, if there are any; `read`: files that are read all the same."""
    others = Counter(
        _shown(path.suffix.lower()) or "no ending"
        for files, _ in folders_below(folder)
        for path in files
        if path.suffix.lower() not in ENDINGS and path not in read and not is_blank(path.name) and path.is_file()
    )
    if others:
        counts = ", ".join(f"{count:,} {ending}" for ending, count in others.most_common(8))
        yield f"files of other formats were not read: {counts}"
