"""``python -m edge_infer.vllm_plugin``: which patches apply to the vLLM that is installed.

Every patch is tried as in a worker, in this process; ``--json`` prints a list of objects.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from edge_infer.errors import EdgeInferError
from edge_infer.vllm_plugin import patches, version


def main() -> int:
    """Exit code 0 when every patch that its flag allows has been applied."""
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        version.check()
        patches.apply_all()
    except EdgeInferError as e:
        print(e, file=sys.stderr)
        return 2
    patches.import_targets()
    found = patches.status()
    if "--json" in sys.argv[1:]:
        print(json.dumps([asdict(status) for status in found], indent=1))
    else:
        for status in found:
            reason = f" ({status.reason})" if status.reason else ""
            print(f"{status.name:<15} {status.state}{reason}: {status.summary} [{status.flag}]")
    return int(any(status.state == patches.NOT_APPLICABLE for status in found))


if __name__ == "__main__":
    sys.exit(main())
