"""A verb that is given one option twice says so: the first value would be lost without a word."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from holdfast.core.errors import BadInput


class Once(TyperCommand):
    """Options that may be repeated, such as `--set`, stay so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options: list[Any] = [each for each in self.params if each.param_type_name == "option"]
        named = {name: each for each in options if not each.multiple for name in (*each.opts, *each.secondary_opts)}
        seen: set[str] = set()
        for word in args[: args.index("--")] if "--" in args else args:
            name = word.partition("=")[0]
            if name not in named:
                continue
            option = named[name]
            if option.name in seen:
                several = "comma separated" in (option.help or "").lower()
                mend = "separate its values with commas" if several else "give it once"
                raise BadInput(f"{name} was given twice, and only one would count: {mend}")
            seen.add(option.name)
        return super().parse_args(ctx, args)
