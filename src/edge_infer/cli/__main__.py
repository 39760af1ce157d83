"""The ``edge-infer`` script, and ``python -m edge_infer.cli``."""

import sys


def main() -> None:
    try:
        from edge_infer.cli.commands import COMMANDS, make_app

        first = sys.argv[1] if len(sys.argv) > 1 else ""
        app = make_app(first if first in COMMANDS else None)
    except KeyboardInterrupt:  # imports take long enough for Ctrl-C to fall into them
        print("edge-infer: interrupted", file=sys.stderr)
        sys.exit(130)
    app(prog_name="edge-infer")


if __name__ == "__main__":
    main()
