"""``bayesrnn recipes``: what there is to train, with the papers' figures."""

from typing import Any

from bayesrnn.lab.cli.errors import one_line

_SPLITS = ("train", "valid", "test")


@one_line
def command() -> None:
    """List the recipes, task by task, with the papers' figures."""
    from bayesrnn.lab import recipes
    from bayesrnn.lab.cli.console import plain_console
    from bayesrnn.lab.recipes import tables
    from bayesrnn.lab.report.tables import Column, rich_table
    from bayesrnn.lab.tasks.base import task_class

    tasks: dict[str, list[dict[str, Any]]] = {}
    for name in recipes.names():
        recipe = recipes.load(name)
        paper, (figures, others) = recipe.paper, tables.published(name)
        source = f"{paper.source}: {paper.row}" if paper.source and paper.row else paper.source or recipe.description
        for key, other in others.items():
            what = f"; {heading(key).split(', ')[-1]}: {other}"
            source += what if what not in source else ""
        tasks.setdefault(recipe.task, []).append({"name": name, "figures": figures, "source": source})
    console = plain_console()
    for task, rows in sorted(tasks.items(), key=lambda item: (item[0] != "language", item[0])):
        keys = [key for key in rows[0]["figures"] if key.split("_")[0] in _SPLITS]
        values = {key: [row["figures"][key] for row in rows if row["figures"][key] is not None] for key in keys}
        columns = [
            Column("name", "recipe"),
            *(
                Column(key, heading(key), "{:.1f}" if min(found) >= 10 else "{:.4g}")
                for key, found in values.items()
                if found
            ),
            Column("source", "source"),
        ]
        measure = task_class(task).metric.removeprefix("valid_").replace("_", " ")
        flat = [{**row["figures"], **row} for row in rows]
        shown = f": {measure} in the papers" if any(values.values()) else ""
        console.print(f"{task}{shown}", style="italic")
        table = rich_table(flat, columns)
        table.columns[-1].justify = "left"
        console.print(table)
    console.print("Train one: bayesrnn train RECIPE --data FOLDER", soft_wrap=True)


def heading(key: str) -> str:
    """``test_mc`` as "test, MC"."""
    split, _, rest = key.partition("_")
    words = " ".join("MC" if word == "mc" else word for word in rest.split("_"))
    return f"{split}, {words}" if rest else split
