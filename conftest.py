"""What all tests need to know about what is installed."""

import os
from importlib.util import find_spec

FRAMEWORKS = {"avalanche": "avalanche", "huggingface": "transformers", "lightning": "lightning"}

# The examples in the documentation of a framework's module run where the framework is.
collect_ignore = [f"recollect/integrations/{ours}.py" for ours, name in FRAMEWORKS.items() if find_spec(name) is None]

# Some virtual machines announce matrix tiles (AMX) and die of using them, as products in bfloat16 do.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
