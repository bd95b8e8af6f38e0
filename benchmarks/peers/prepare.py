"""A GGUF model as a directory of safetensors, for transformers and vLLM:

python benchmarks/peers/prepare.py MODEL.gguf DIRECTORY [--dtype float32]

The weights are the GGUF's own, dequantised, so that all peers have the same model.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from paceline.engines.load import resolve
from paceline.engines.transformers.load import convert_gguf, readable
from paceline.errors import PacelineError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file, or a demo model's name")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    if args.directory.exists():
        print(f"{args.directory} is there already. Name another.", file=sys.stderr)
        return 2
    try:
        with readable(args.model):
            made = convert_gguf(Path(resolve(args.model)), args.dtype)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return 2
    shutil.copytree(made, args.directory, copy_function=_link_or_copy)
    print(args.directory)
    return 0


def _link_or_copy(source: str, target: str) -> str:
    """The cache keeps what it made, so weights are linked where the file system can."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


if __name__ == "__main__":
    sys.exit(main())
