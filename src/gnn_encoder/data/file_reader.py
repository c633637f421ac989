"""Reads files of many formats as blocks, in a process of its own: a file may hang its parser, or explode in memory.

`FileReader` is the parent's side. The child (`python -m gnn_encoder.data.file_reader`) gets a path in each line and
answers with a line of JSON: the content, or why there is none. A child that takes too long is killed, and the next file
gets a new one. Its memory has a limit.

PDF is read page by page by pypdfium2, since links lead to pages: 214 pages of a manual take it 0.6 s, and pdfminer.six,
which markitdown takes, 19 s. DOCX, PPTX and EPUB become Markdown by markitdown.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from gnn_encoder.data.blocks import Block
from gnn_encoder.data.cutting import LINE_END
from gnn_encoder.data.markdown import markdown_blocks
from gnn_encoder.data.markup import PARSERS

TEXTS = frozenset({*PARSERS, ".txt"})
WITH_LIBRARIES = frozenset({".pdf", ".docx", ".pptx", ".epub"})
ENDINGS = TEXTS | WITH_LIBRARIES
LARGEST_TEXT, LARGEST = 1 << 24, 1 << 26
"""Bytes of a text, whose parsed page takes some 30 times its size in memory, and of another file."""
UNPACKED = 1 << 29
"""Bytes of all that a DOCX, PPTX or EPUB file, a ZIP archive, unpacks to."""
MEMORY = 3 << 29
"""Bytes of memory of the child: 1.5 GiB."""
PARAGRAPH = re.compile(r"\n\s*\n")
SLIDE = re.compile(r"<!-- Slide number: (\d+) -->")
"""With which markitdown begins a slide."""
CHARSET = re.compile(rb"(?:charset|<\?xml[^>]*\sencoding)\s*=\s*[\"']?([A-Za-z0-9_-]+)")
INSTALL = "pip install 'gnn-encoder[documents]'"


class Unreadable(Exception):
    """Why a file cannot be read, in words."""


@dataclass
class Content:
    """The blocks of a file. `guessed`: its text is not UTF-8 and names no encoding that fits: read as Windows-1252."""

    blocks: list[Block]
    guessed: bool = False


class FileReader:
    """Reads files in a child process, which starts with the first file. To be closed.

    Args:
        seconds: after which a file is given up.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[str] | None = None

    def content(self, path: Path) -> Content:
        """Returns the content of a file; raises Unreadable."""
        child, late = self._started(), list[bool]()
        assert child.stdin and child.stdout

        def end() -> None:
            late.append(True)
            child.kill()

        timer = Timer(self._seconds, end)
        timer.start()
        try:
            child.stdin.write(json.dumps(str(path)) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if not answer.endswith("\n"):
            self.close()
            raise Unreadable(f"took more than {self._seconds:g} s" if late else "its reader ended (out of memory?)")
        message = json.loads(answer)
        if "reason" in message:
            raise Unreadable(message["reason"])
        return Content([Block(**block) for block in message["blocks"]], message["guessed"])

    def _started(self) -> "subprocess.Popen[str]":
        if self._child is None or self._child.poll() is not None:
            package = str(Path(__file__).parents[2])
            search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
            self._child = subprocess.Popen(
                [sys.executable, "-m", "gnn_encoder.data.file_reader"], text=True, encoding="utf-8",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search},
            )  # fmt: skip
        return self._child

    def close(self) -> None:
        """Ends the child."""
        if self._child:
            self._child.kill()
            self._child.communicate()
        self._child = None


def read(path: Path) -> Content:
    """Returns the content of a file; raises Unreadable or whatever a library raises."""
    ending, size = path.suffix.lower(), path.stat().st_size
    largest = LARGEST_TEXT if ending in TEXTS else LARGEST
    if size > largest:
        raise Unreadable(f"{size:,} bytes; a {ending} file has at most {largest:,}")
    if ending == ".pdf":
        return Content(list(_pdf_blocks(path)))
    if ending in WITH_LIBRARIES:
        return Content(list(_office_blocks(path)))
    text, guessed = decoded(path.read_bytes())
    parsed = PARSERS.get(ending, _paragraphs)(text.replace("\r\n", "\n").replace("\r", "\n"))
    return Content(list(parsed), guessed)


def decoded(data: bytes) -> tuple[str, bool]:
    """Decodes a text: UTF-8, UTF-16 with its mark, the character set that it names, or else, a guess, Windows-1252.

    Returns:
        The text, and whether its encoding was guessed.
    """
    if b"\0" in data[:4096] and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        raise Unreadable("binary, not text")
    named, wrong = CHARSET.search(data[:2048]), ""
    encodings = ["utf-16"] if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig"]
    encodings += [named[1].decode()] if named else []
    for encoding in encodings:
        try:
            return data.decode(encoding), False
        except UnicodeDecodeError as error:
            line, name = error.object.count(b"\n", 0, error.start) + 1, encoding.removesuffix("-sig").upper()
            wrong = wrong or f"byte 0x{error.object[error.start]:02x} in line {line} is not {name}"
        except (UnicodeError, LookupError):
            continue
    try:
        return data.decode("cp1252"), True
    except UnicodeDecodeError:
        raise Unreadable(f"{wrong}, and the file is not Windows-1252 either: mend or convert it") from None


def _paragraphs(text: str) -> Iterator[Block]:
    """The paragraphs of a plain text, with the lines at which they begin."""
    start, line = 0, 1
    for end in [*(match.span() for match in PARAGRAPH.finditer(text)), (len(text), len(text))]:
        if paragraph := text[start : end[0]].strip("\n"):
            yield Block(0, paragraph, line)
        line += text.count("\n", start, end[1])
        start = end[1]


def _pdf_blocks(path: Path) -> Iterator[Block]:
    """A block for each page: where a paragraph ends, a PDF does not say."""
    import pypdfium2

    has_text = False
    for number, page in enumerate(pypdfium2.PdfDocument(path), 1):
        if text := _unhyphenated(page.get_textpage().get_text_bounded()):
            has_text = True
            yield Block(0, text, number, place=f"page={number}")
        page.close()
    if not has_text:
        raise Unreadable("no text in it: its pages are pictures, which need character recognition first")


def _unhyphenated(text: str) -> str:
    """Joins the lines of a printed page, and words that were divided at their ends."""
    text = re.sub(r"(?<=[^\W\d_])(?:[-\u00ad]\r?\n|\ufffe(?:\r?\n)?)(?=[^\W\d_])", "", text)
    return " ".join(LINE_END.sub("", re.sub(r"[\0\ufffe\uffff]", " ", text)).split())


def _office_blocks(path: Path) -> Iterator[Block]:
    with zipfile.ZipFile(path) as archive:
        if (unpacked := sum(part.file_size for part in archive.infolist())) > UNPACKED:
            raise Unreadable(f"unpacks to {unpacked:,} bytes; at most {UNPACKED:,} are read")
    from markitdown import StreamInfo
    from markitdown.converters import DocxConverter, EpubConverter, PptxConverter

    ending = path.suffix.lower()
    converters: dict[str, Any] = {".docx": DocxConverter, ".pptx": PptxConverter, ".epub": EpubConverter}
    converter = converters[ending]()
    with path.open("rb") as stream:
        markdown = converter.convert(stream, StreamInfo(extension=ending, filename=path.name)).markdown
    first, *slides = SLIDE.split(markdown)
    yield from markdown_blocks(first)
    for number, slide in zip(slides[::2], slides[1::2], strict=True):
        yield Block(1, "", 1, place=f"slide={number}")  # ends the sections of the slide before
        for block in markdown_blocks(slide):
            block.place = f"slide={number}"
            yield block


def _answer(path: Path) -> dict[str, Any]:
    try:
        content = read(path)
        return {"blocks": [asdict(block) for block in content.blocks], "guessed": content.guessed}
    except Unreadable as error:
        return {"reason": str(error)}
    except ModuleNotFoundError as error:
        return {"reason": f"needs the package {error.name}: {INSTALL}"}
    except MemoryError:
        return {"reason": f"needs more than {MEMORY / 2**30:.1f} GiB of memory"}
    except OSError as error:
        return {"reason": error.strerror or str(error)}
    except Exception as error:  # a library says in its own way that a file is damaged
        words = " ".join(str(error).split())
        return {"reason": f"damaged, or not {path.suffix.lower()} ({type(error).__name__}: {words})"[:200]}


def main() -> None:
    """The child's side: answers each line of its input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    except (ImportError, ValueError, OSError):  # not on this system, or a lower limit is set already
        pass
    for line in sys.stdin:
        answers.write(json.dumps(_answer(Path(json.loads(line)))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
