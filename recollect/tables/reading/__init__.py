"""Table files to pieces of rows, without trusting them.

`sources` finds files, `recognising` tells how each is read, and one module per format reads it piece by piece, so that
a file may be larger than memory.
"""

from recollect.tables.reading.dialect import FORMATS, Dialect, Reading, Skipped, Source, UnreadableError
from recollect.tables.reading.pieces import in_use, known_rows, parts, pieces, plain, retyped
from recollect.tables.reading.recognising import recognise
from recollect.tables.reading.sources import at_hand, content_hash, find_files, found_at, opened, recognise_at, watched

__all__ = [
    "FORMATS",
    "Dialect",
    "Reading",
    "Skipped",
    "Source",
    "UnreadableError",
    "at_hand",
    "content_hash",
    "find_files",
    "found_at",
    "in_use",
    "known_rows",
    "opened",
    "parts",
    "pieces",
    "plain",
    "recognise",
    "recognise_at",
    "retyped",
    "watched",
]
