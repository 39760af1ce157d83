"""The ``edge-infer`` script, and ``python -m edge_infer.cli``."""

import sys


def main() -> None:
    try:
        from edge_infer.cli.main import app
    except KeyboardInterrupt:  # imports take long enough for Ctrl-C to fall into them
        print("edge-infer: interrupted", file=sys.stderr)
        sys.exit(130)
    app(prog_name="edge-infer")


if __name__ == "__main__":
    main()
