"""Lets the reference show the `Example:` of a docstring as code."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Griffe knows the section as `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is documented."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
