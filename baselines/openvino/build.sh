#!/usr/bin/env bash
# Makes the peer's own virtual environment, with the versions of requirements.txt.
source "$(dirname "${BASH_SOURCE[0]}")/../venv.sh"
make_venv
