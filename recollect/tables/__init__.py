"""Tables in files: choosing rows once, and a memory of them in a folder."""

from recollect.tables.account import Account
from recollect.tables.encoding import Encoding
from recollect.tables.examining import fit_encoding
from recollect.tables.memory import TABLE_MEMORIES, Settings, TableMemory, load_network, parse_bytes
from recollect.tables.reading import Reading, find_files, pieces
from recollect.tables.selecting import export_table, select_rows
from recollect.tables.store import Recovery, Store, Update
from recollect.tables.writing import WRITTEN, write_table

__all__ = [
    "TABLE_MEMORIES",
    "WRITTEN",
    "Account",
    "Encoding",
    "Reading",
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
