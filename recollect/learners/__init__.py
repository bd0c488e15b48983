"""Learners: one file each."""

from recollect.learners.gdumb import GDumb
from recollect.learners.training import Training, predict, train

__all__ = ["GDumb", "Training", "predict", "train"]
