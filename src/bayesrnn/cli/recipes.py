"""``bayesrnn recipes``: what there is to train, with the papers' figures."""

from bayesrnn.cli.errors import one_line


@one_line
def command() -> None:
    """List the recipes with the papers' perplexities on the Penn Treebank."""
    from bayesrnn import recipes
    from bayesrnn.cli.console import plain_console
    from bayesrnn.report.tables import Column, rich_table

    rows = []
    for name in recipes.names():
        recipe = recipes.load(name)
        paper = recipe.paper
        rows.append(
            {
                "name": name,
                "valid": paper.valid,
                "test": paper.test,
                "test_mc": paper.test_mc,
                "test_dynamic": paper.test_dynamic,
                "source": f"{paper.source}: {paper.row}" if paper.row else paper.source,
            }
        )
    columns = (
        Column("name", "recipe"),
        Column("valid", "paper: valid", "{:.1f}"),
        Column("test", "test", "{:.1f}"),
        Column("test_mc", "test, MC", "{:.1f}"),
        Column("test_dynamic", "test, dynamic", "{:.1f}"),
        Column("source", "source"),
    )
    console = plain_console()
    console.print(rich_table(rows, columns))
    console.print("Train one: bayesrnn train RECIPE --data FOLDER", soft_wrap=True)
