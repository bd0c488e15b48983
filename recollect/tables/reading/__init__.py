"""Table files to pieces of rows, without trusting them.

`sources` finds files, `recognising` tells how each is read, and one module per format reads it piece by piece, so that
a file may be larger than memory.
"""

from recollect.tables.reading.dialect import FORMATS, Dialect, Reading, Skipped, Source, UnreadableError
from recollect.tables.reading.pieces import known_rows, parts, pieces, retyped
from recollect.tables.reading.recognising import recognise
from recollect.tables.reading.sources import content_hash, find_files, opened

__all__ = [
    "FORMATS",
    "Dialect",
    "Reading",
    "Skipped",
    "Source",
    "UnreadableError",
    "content_hash",
    "find_files",
    "known_rows",
    "opened",
    "parts",
    "pieces",
    "recognise",
    "retyped",
]
