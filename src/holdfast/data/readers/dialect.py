"""Detect how a csv or tsv file is written: its separator and its encoding."""

import codecs
import csv
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from holdfast.core.errors import BadInput

SEPARATORS = {".csv": ",", ".tsv": "\t"}
CANDIDATES = ",;\t|"
SEPARATOR_NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons", "|": "vertical bars"}
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NOT_CP1252 = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])  # bytes without a character
_BLOCK = 1 << 20  # bytes per read
_SAMPLE = 1 << 18  # bytes that determine the separator
_ROWS = 100  # rows that determine the separator


@dataclass(frozen=True)
class Dialect:
    """Separator and encoding of one file; `start` is the number of bytes of a byte order mark to skip."""

    separator: str
    encoding: str = "utf-8"
    start: int = 0
    notes: tuple[str, ...] = ()

    def open(self, path: Path) -> IO[bytes]:
        """Open the file behind its byte order mark."""
        file = path.open("rb")
        file.seek(self.start)
        return file


def detect_dialect(path: Path) -> Dialect:
    """Return the dialect of a csv or tsv file."""
    encoding, start = _detect_encoding(path)
    expected = SEPARATORS[path.suffix.lower()]
    separator = _detect_separator(path, encoding, start, expected)
    notes = []
    if separator != expected:
        notes.append(f"{path.name} is read as separated by {SEPARATOR_NAMES[separator]}")
    if encoding != "utf-8":
        notes.append(f"{path.name} is not UTF-8 and is read as {'UTF-16' if encoding == 'utf-16' else 'Windows-1252'}")
    return Dialect(separator, encoding, start, tuple(notes))


def _detect_encoding(path: Path) -> tuple[str, int]:
    """Return the encoding and the length of the byte order mark to skip.

    A file that is not UTF-8 is Windows-1252 (Excel in Western Europe and America) if most of its other characters are
    invalid UTF-8. If most are valid, single bytes are damaged, which is an error of the file.
    """
    with path.open("rb") as file:
        head = file.read(3)
        if head[:2] in _UTF16:
            return "utf-16", 0  # the codec reads the byte order mark
        start = 3 if head == codecs.BOM_UTF8 else 0
        file.seek(start)
        valid = invalid = 0
        undefined = False
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        while block := file.read(_BLOCK):
            text = decoder.decode(block, final=len(block) < _BLOCK)
            if not text.isascii():
                bad = len(text) - len(text.encode("utf-8", "ignore").decode())  # each invalid byte is a surrogate
                valid += len(text) - len(text.encode("ascii", "ignore")) - bad
                invalid += bad
                undefined |= bad > 0 and any(byte in block for byte in _NOT_CP1252)
    if not invalid or invalid < valid:
        return "utf-8", 0  # Arrow skips the mark, and reports the row of a damaged character
    if undefined:
        raise not_utf8(path, "and not Windows-1252")
    return "cp1252", start


def _detect_separator(path: Path, encoding: str, start: int, expected: str) -> str:
    """Return the expected separator, unless only another one gives rows of equal length."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(_SAMPLE)
    text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(data).removeprefix("\ufeff")
    if len(data) == _SAMPLE:
        text = text[: text.rfind("\n") + 1] or text  # without the last, incomplete row
    widths = {mark: _widths(text, mark) for mark in CANDIDATES}
    present = [mark for mark in CANDIDATES if widths[mark] and widths[mark][0] > 1]
    regular = [mark for mark in present if len(set(widths[mark])) == 1]
    if expected in regular or not present:
        return expected
    if regular:
        return max(regular, key=lambda mark: widths[mark][0])
    return expected if expected in present else max(present, key=lambda mark: widths[mark][0])


def _widths(text: str, separator: str) -> list[int]:
    """Return the number of values of each of the first rows; rows without values are left out."""
    lines = csv.reader(text.splitlines(keepends=True), delimiter=separator)
    try:
        return [len(row) for row in islice(lines, _ROWS) if row]
    except csv.Error:  # a value longer than the limit of the parser
        return []


def not_utf8(path: Path, reason: str, code: str = "LATIN1") -> BadInput:
    """Return the error for a file in an encoding that cannot be read."""
    command = f"iconv -f {code} -t UTF-8 {path.name} > utf8{path.suffix}"
    return BadInput(f"{path} is not UTF-8 ({reason}): convert it, for example with {command}")
