"""One self-contained page about results."""

from recollect.report.page import build_page

__all__ = ["build_page"]
