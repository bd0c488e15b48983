"""Streams: one file per scenario. Any list of (inputs, targets) is a stream too."""

from recollect.streams.class_incremental import class_incremental
from recollect.streams.rotated import rotated
from recollect.streams.sorted_by_feature import sorted_by_feature
from recollect.streams.stream import Stream

__all__ = ["Stream", "class_incremental", "rotated", "sorted_by_feature"]
