"""Learners: one file each."""

from recollect.learners.dark_experience_replay import DarkExperienceReplay
from recollect.learners.experience_replay import ExperienceReplay
from recollect.learners.fine_tune import FineTune
from recollect.learners.gdumb import GDumb
from recollect.learners.joint import Joint
from recollect.learners.learner import Learner
from recollect.learners.training import Job, Training, predict, train, train_jobs, train_many

__all__ = [
    "DarkExperienceReplay",
    "ExperienceReplay",
    "FineTune",
    "GDumb",
    "Job",
    "Joint",
    "Learner",
    "Training",
    "predict",
    "train",
    "train_jobs",
    "train_many",
]
