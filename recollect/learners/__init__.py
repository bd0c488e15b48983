"""Learners: one file each."""

from recollect.learners.dark_experience_replay import DarkExperienceReplay
from recollect.learners.experience_replay import ExperienceReplay
from recollect.learners.fine_tune import FineTune
from recollect.learners.gdumb import GDumb
from recollect.learners.joint import Joint
from recollect.learners.learner import Learner
from recollect.learners.training import MakeOptimizer, MakeScheduler, Task, Training, predict, train

__all__ = [
    "DarkExperienceReplay",
    "ExperienceReplay",
    "FineTune",
    "GDumb",
    "Joint",
    "Learner",
    "MakeOptimizer",
    "MakeScheduler",
    "Task",
    "Training",
    "predict",
    "train",
]
