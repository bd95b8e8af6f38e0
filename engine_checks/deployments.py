"""Hold what `paceline export kubernetes` and `dynamo` write against schemas, templates and parsers,
each in an environment of its own; results as JSON.

    python engine_checks/deployments.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import environments

HERE = Path(__file__).parent
SCHEMAS = ("kubernetes-validate==1.37.0", "cloudcoil.models.prometheus_operator==0.80.1.0")
DYNAMO = ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")


def schema_environment() -> Path:
    """Its Python: with the schemas, and what Paceline needs to write YAML."""
    place = environments.CACHE / "schemas"
    if not (place / "ready").exists():
        environments.run(sys.executable, "-m", "venv", place)
        wanted = (*SCHEMAS, f"{environments.ROOT}[export]")
        environments.run(place / "bin/pip", "install", "--quiet", *wanted)
        (place / "ready").touch()
    return place / "bin/python"


def dynamo_packages() -> tuple[Path, Path]:
    """Dynamo's wheel, and a folder with its packages: their own dependencies are for CUDA."""
    place = environments.CACHE / "dynamo-1.6.1"
    if not (place / "ready").exists():
        pip = (sys.executable, "-m", "pip")
        environments.run(*pip, "download", "--quiet", "--no-deps", "-d", place / "wheels", *DYNAMO)
        wheels = sorted((place / "wheels").glob("*.whl"))
        packages = place / "packages"
        environments.run(*pip, "install", "--quiet", "--no-deps", "--target", packages, *wheels)
        (place / "ready").touch()
    (wheel,) = (place / "wheels").glob("ai_dynamo-*.whl")
    return wheel, place / "packages"


def passes(python: Path, script: str, *words: str | Path, path: Path) -> bool:
    environment = os.environ | {"PYTHONPATH": str(path)}
    command = [str(python), str(HERE / script), *map(str, words)]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def main() -> int:
    python, source = schema_environment(), environments.ROOT / "src"
    wheel, packages = dynamo_packages()
    # In this order: each reads what the one before it wrote.
    passed = {
        "manifests": passes(python, "manifests.py", path=source),
        "graphs": passes(python, "dynamo_graphs.py", wheel, path=source),
    }
    vllm = environments.vllm_environment() / "bin/python"
    passed["parsers"] = passes(vllm, "dynamo_parsers.py", path=packages)
    for name, good in passed.items():
        if not good:
            print(f"FAILED {name}")
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
