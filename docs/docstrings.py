"""Lets the reference show the `Example:` of a docstring as code, and the value of a default that has a name."""

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Griffe knows the section as `Examples:`."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for everything that is documented."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")


class Defaults(griffe.Extension):
    """Of `shortlist = SHORTLIST` a reader learns nothing."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called once all of the package is known."""
        for module in [pkg, *_within(pkg)]:
            for function in _functions(module):
                for parameter in function.parameters:
                    default = parameter.default
                    if isinstance(default, griffe.ExprName) and default.canonical_path.startswith(pkg.path):
                        named = pkg.modules_collection[default.canonical_path]
                        parameter.default = named.value if named.is_attribute else default


def _within(module: griffe.Module) -> list[griffe.Module]:
    return [some for one in module.modules.values() if not one.is_alias for some in (one, *_within(one))]


def _functions(owner: griffe.Module | griffe.Class) -> list[griffe.Function]:
    own = [function for function in owner.functions.values() if not function.is_alias]
    return own + [function for one in owner.classes.values() if not one.is_alias for function in _functions(one)]
