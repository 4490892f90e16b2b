"""``bayesrnn recipes``: the recipes with their published results, and every setting of one of them."""

import json
from typing import Annotated, Any

import typer

from bayesrnn.errors import UserError
from bayesrnn.lab.console.errors import one_line
from bayesrnn.lab.reading import as_given


@one_line
def command(
    name: Annotated[
        str | None, typer.Argument(help="List every setting of this recipe. With --schema: the name of a task.")
    ] = None,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema", help="Print the JSON schema of recipes for an editor: of all tasks, or of the task NAME."
        ),
    ] = False,
) -> None:
    """List the recipes task by task with the papers' results; or all settings of one recipe, with their meaning.

    To check a YAML file while you write it, save the schema and name it in the file's first lines:

    # yaml-language-server: $schema=recipe.schema.json
    """
    from bayesrnn.lab import recipes
    from bayesrnn.lab.console.output import plain_console
    from bayesrnn.lab.recipes import keys, tables
    from bayesrnn.lab.registry import task_class
    from bayesrnn.lab.report.tables import Column, rich_table

    if schema:
        typer.echo(json.dumps(keys.json_schema(name), indent=2))
        return
    console = plain_console()
    if name is not None:
        recipe = recipes.load(name)
        settings = [vars(s) for s in keys.settings(recipe) if "." in s.key and not s.key.startswith("paper.")]
        shown = [{**s, "value": as_given(s["value"]), "default": as_given(s["default"])} for s in settings]
        table = rich_table(shown, [Column("key", "setting"), *(Column(c, c) for c in ("value", "default", "meaning"))])
        for column in table.columns:
            column.justify, column.vertical = "left", "top"
        console.print(f"{name} ({recipe.task}): {recipe.description}", style="italic", soft_wrap=True)
        console.print(table)
        console.print(f"Change one: bayesrnn train {name} --set train.epochs={recipe.train.epochs}", soft_wrap=True)
        return
    tasks: dict[str, list[dict[str, Any]]] = {}
    for each in recipes.names():
        try:
            recipe = recipes.load(each)
        except UserError as error:  # one of another package does not hide the rest
            typer.echo(f"bayesrnn: {error}", err=True)
            continue
        values, others = tables.published(each, recipe)
        source = _source(recipe.paper.source, recipe.paper.row, others) or recipe.description
        tasks.setdefault(recipe.task, []).append({**values, "name": each, "source": source})
    for task, rows in sorted(tasks.items(), key=lambda item: (-len(item[1]), item[0])):
        results = [key for key in rows[0] if key.split("_")[0] in ("train", "valid", "test")]
        found = {key: [row[key] for row in rows if row[key] is not None] for key in results}
        digits = {key: "{:.1f}" if min(values) >= 10 else "{:.4g}" for key, values in found.items() if values}
        columns = [Column(key, heading(key), pattern) for key, pattern in digits.items()]
        metric = task_class(task).metric.removeprefix("valid_").replace("_", " ")
        console.print(f"{task}: {metric} in the papers" if columns else task, style="italic")
        table = rich_table(rows, [Column("name", "recipe"), *columns, Column("source", "source")])
        table.columns[-1].justify = "left"
        console.print(table)
    console.print("Train one: bayesrnn train RECIPE --data FOLDER", soft_wrap=True)


def _source(paper: str, row: str, others: dict[str, str]) -> str:
    text = f"{paper}: {row}" if paper and row else paper
    for key, other in others.items():
        what = f"; {heading(key).split(', ')[-1]}: {other}"
        text += what if what not in text else ""
    return text


def heading(key: str) -> str:
    """``test_mc`` as "test, MC"."""
    split, _, rest = key.partition("_")
    words = " ".join("MC" if word == "mc" else word for word in rest.split("_"))
    return f"{split}, {words}" if rest else split
