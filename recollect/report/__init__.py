"""Results beside the paper's: one self-contained page, or Markdown with figures."""

from recollect.report.document import write_document
from recollect.report.page import build_page

__all__ = ["build_page", "write_document"]
