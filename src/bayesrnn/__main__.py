"""The ``bayesrnn`` command, also as ``python -m bayesrnn``: an interrupt while its parts are imported is one line."""

import sys


def main() -> None:
    """Entry point. What takes time is imported inside."""
    try:
        from bayesrnn.cli import app

        app()
    except KeyboardInterrupt:  # outside of a subcommand, which says it itself
        sys.stderr.write("bayesrnn: interrupted.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
