"""Options of ``bayesrnn evaluate`` that only language models have."""

from functools import partial
from typing import Annotated, Any

import typer

_option: Any = partial(typer.Option, rich_help_panel="Language models")


def options(
    dynamic: Annotated[bool, _option("--dynamic", help="Also update the weights during the test.")] = False,
    reversed_text: Annotated[bool, _option("--reversed", help="Also the entropy on reversed text.")] = False,
    temperature: Annotated[bool, _option("--temperature", help="Also at a temperature chosen on validation.")] = False,
    dynamic_lr: Annotated[
        str | None,
        _option(
            help="Step size of --dynamic, or several with commas: the best on validation. Default: the recipe's; "
            "2e-4 for rms."
        ),
    ] = None,
    dynamic_rule: Annotated[str | None, _option(help="sgd (the default), or rms (Krause et al.).")] = None,
    dynamic_decay: Annotated[
        str | None,
        _option(help="Pull back to the trained weights, or several with commas: the best on validation. Default: 0."),
    ] = None,
    drop_words: Annotated[
        bool,
        _option("--drop-words", help="Keep word dropout on in draws; their metrics end in _words."),
    ] = False,
    test_only: Annotated[
        bool,
        _option("--test-only", help="Draws on the test text, not on the validation text."),
    ] = False,
    entropy_samples: Annotated[int, _option(min=0, help="Draws for the entropy gap.")] = 10,
) -> None:
    """Parameters of :meth:`bayesrnn.lab.tasks.language.task.Language.evaluate`, for ``--help``."""
