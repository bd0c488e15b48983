"""Continual gradient matching (Alg. 2).

`memory` is the face, `GradientMatching`: its options, where examples may come from, merging and forgetting.
`algorithm` is what happens to examples that arrive: they wait for a choice, stand for others, or are chosen from.
`choosing` has the options of a choice: how many candidates there are, and how places are filled from them.
`pool` is what one choice is made from.
`record` is what is known of everything seen. Two of them can be added, and examples can be taken out of one.
"""

from recollect.memories.gradient_matching.memory import GradientMatching

__all__ = ["GradientMatching"]
