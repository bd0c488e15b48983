"""Tables in files: choosing rows once, and a memory of them in a folder."""

from recollect.tables.encoding import Encoding, fit_encoding
from recollect.tables.memory import TABLE_MEMORIES, Settings, TableMemory, load_network, parse_bytes
from recollect.tables.reading import WRITTEN, find_files, pieces, write_table
from recollect.tables.selecting import export_table, select_rows
from recollect.tables.store import Recovery, Store, Update

__all__ = [
    "TABLE_MEMORIES",
    "WRITTEN",
    "Encoding",
    "Recovery",
    "Settings",
    "Store",
    "TableMemory",
    "Update",
    "export_table",
    "find_files",
    "fit_encoding",
    "load_network",
    "parse_bytes",
    "pieces",
    "select_rows",
    "write_table",
]
