"""Options that several commands share, and a command that explains unknown ones."""

import difflib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

Recipe = Annotated[str, typer.Argument(help="A name from `bayesrnn recipes`, or a YAML file.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changed settings, such as train.epochs=2.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A changed setting; `bayesrnn recipes RECIPE` lists them."),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")]
Graph = Annotated[bool, typer.Option(help="Record a CUDA step as one graph.")]
SEEDS = {"min": 0, "max": 2**63 - 1}


class WithSettings(TyperCommand):
    """A command whose --set changes settings of a recipe: an unknown option may be one of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {option for p in self.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
        for word, after in zip(args, [*args[1:], ""], strict=False):
            option, equals, value = word.partition("=")
            if option == "--":
                break
            if option.startswith("--") and option not in known and (key := _setting(option, args, known)):
                value = value if equals else after if after and not after.startswith("-") else "VALUE"
                ctx.fail(f"No such option: {option}. Did you mean --set {key}={value}?")
        return super().parse_args(ctx, args)


def _setting(option: str, words: list[str], options: set[str]) -> str:
    """The setting that an unknown option may mean, by its key or its meaning; empty: another option is nearer."""
    from bayesrnn.lab import recipes
    from bayesrnn.lab.recipes.keys import settings
    from bayesrnn.lab.registry import TASKS

    named = next((word for word in words if word in recipes.names() or word.endswith((".yaml", ".yml"))), None)
    wanted = [recipes.load(named)] if named else [recipes.from_dict({"task": task}, where=task) for task in TASKS]
    known = {s.key: s.meaning for recipe in wanted for s in settings(recipe) if s.key.partition(".")[0] != "paper"}
    leaves = {key.rpartition(".")[2]: key for key in known}
    name = option.lstrip("-").replace("-", "_")
    near = difflib.get_close_matches(name, [*leaves, *(o.lstrip("-").replace("-", "_") for o in options)], n=1)
    meant = [key for key, meaning in known.items() if name.replace("_", " ") in meaning]
    return leaves.get(name) or (leaves.get(near[0], "") if near else meant[0] if meant else "")
