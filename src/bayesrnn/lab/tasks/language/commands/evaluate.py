"""Options of ``bayesrnn evaluate`` that only language models have."""

from typing import Annotated

import typer

_PANEL = "Language models"


def options(
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Also update the weights during the test.", rich_help_panel=_PANEL)
    ] = False,
    reversed_text: Annotated[
        bool, typer.Option("--reversed", help="Also the entropy on reversed text.", rich_help_panel=_PANEL)
    ] = False,
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Also at a temperature chosen on validation.", rich_help_panel=_PANEL)
    ] = False,
    dynamic_lr: Annotated[
        str | None,
        typer.Option(
            help="Step size of --dynamic, or several with commas: the best on validation. Default: the recipe's; "
            "2e-4 for rms.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    dynamic_rule: Annotated[
        str | None, typer.Option(help="sgd (the default), or rms (Krause et al.).", rich_help_panel=_PANEL)
    ] = None,
    dynamic_decay: Annotated[
        str | None,
        typer.Option(
            help="Pull back to the trained weights, or several with commas: the best on validation. Default: 0.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    drop_words: Annotated[
        bool,
        typer.Option(
            "--drop-words", help="Keep word dropout on in draws; their metrics end in _words.", rich_help_panel=_PANEL
        ),
    ] = False,
    test_only: Annotated[
        bool,
        typer.Option("--test-only", help="Draws on the test text, not on the validation text.", rich_help_panel=_PANEL),
    ] = False,
    entropy_samples: Annotated[
        int, typer.Option(min=0, help="Draws for the entropy gap.", rich_help_panel=_PANEL)
    ] = 10,
) -> None:
    """Parameters of :meth:`bayesrnn.lab.tasks.language.task.Language.evaluate`, for ``--help``."""
