"""Streams: one file per scenario."""

from recollect.streams.class_incremental import class_incremental
from recollect.streams.stream import Stream

__all__ = ["Stream", "class_incremental"]
