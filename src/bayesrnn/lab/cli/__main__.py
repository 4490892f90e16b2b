"""The ``bayesrnn`` command, also as ``python -m bayesrnn``: what goes wrong outside of a subcommand is one line too."""

import sys


def main() -> None:
    """Entry point. What takes time is imported inside."""
    try:
        from bayesrnn.lab.cli import app
        from bayesrnn.lab.cli.errors import run

        run(app)
    except KeyboardInterrupt:  # while these are imported
        sys.stderr.write("bayesrnn: interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
