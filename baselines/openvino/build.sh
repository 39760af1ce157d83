#!/usr/bin/env bash
# Makes the peer's own virtual environment, with the versions of requirements.txt.
source "$(dirname "${BASH_SOURCE[0]}")/../venv.sh"
make_venv
# optimum-intel pulls in torchvision. PyPI's is a CUDA build, which fails to import beside a CPU
# torch and takes transformers with it; absent, it is not missed.
"$venv/bin/python" -c "import torchvision" 2>/dev/null ||
  "$venv/bin/python" -m pip uninstall -q -y torchvision
