"""Results beside the paper's: one self-contained page, or Markdown with figures."""

from recollect.report.document import write_document
from recollect.report.page import build_page

PICTURED = {".html": ("covertype", "mnist", "fashion-mnist"), ".md": ("covertype",)}
"""Data sets of which a page of each kind has pictures, where they are found."""

__all__ = ["PICTURED", "build_page", "write_document"]
