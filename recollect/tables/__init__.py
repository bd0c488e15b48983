"""Tables in files and frames: choosing rows once, and a memory of them in a folder.

    rc.tables.select(frame, target="label", size=100)           the chosen rows, with their weights
    rc.tables.columns("rows.csv", target="label")               what each column was read as
    rc.tables.Store.create("store", rc.tables.Settings("label", 100)).update(["monday.csv"])

The commands `recollect select`, `columns`, `init`, `set`, `update`, `export` and `inspect` do the same.
"""

from typing import TYPE_CHECKING

from recollect.importing import on_demand

if TYPE_CHECKING:
    from recollect.tables.account import Account
    from recollect.tables.documents import Recovery, Update
    from recollect.tables.encoding import Encoding
    from recollect.tables.examining import fit_encoding
    from recollect.tables.frames import columns, select
    from recollect.tables.memory import TableMemory
    from recollect.tables.networks import load_network
    from recollect.tables.reading import Reading, find_files, pieces
    from recollect.tables.selecting import export_table, select_rows
    from recollect.tables.settings import TABLE_MEMORIES, Settings, parse_bytes
    from recollect.tables.store import Store
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
    "columns",
    "export_table",
    "find_files",
    "fit_encoding",
    "load_network",
    "parse_bytes",
    "pieces",
    "select",
    "select_rows",
    "write_table",
]

if not TYPE_CHECKING:  # whoever checks types would take any name for one of ours
    __getattr__ = on_demand(
        __name__,
        {
            "account": ["Account"],
            "documents": ["Recovery", "Update"],
            "encoding": ["Encoding"],
            "examining": ["fit_encoding"],
            "frames": ["columns", "select"],
            "memory": ["TableMemory"],
            "networks": ["load_network"],
            "reading": ["Reading", "find_files", "pieces"],
            "selecting": ["export_table", "select_rows"],
            "settings": ["TABLE_MEMORIES", "Settings", "parse_bytes"],
            "store": ["Store"],
            "writing": ["WRITTEN", "write_table"],
        },
    )


def __dir__() -> list[str]:
    return __all__
