"""The `bayesrnn` command, also as `python -m bayesrnn`. Errors outside a subcommand are one line too."""

import sys


def main() -> None:
    """Entry point. Slow imports happen inside, so that an interrupt during them is one line."""
    try:
        from bayesrnn.lab.cli import app
        from bayesrnn.lab.console.errors import run

        run(lambda: app(prog_name="bayesrnn"))  # also as `python -m bayesrnn`
    except KeyboardInterrupt:
        sys.stderr.write("bayesrnn: interrupted.\n")
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "bayesrnn").split(".")[0] == "bayesrnn":
            raise
        needs = f"the command needs more packages (no module {error.name}); pip install 'bayesrnn[lab]'"
        sys.exit(f"bayesrnn: {needs}.")


if __name__ == "__main__":
    main()
