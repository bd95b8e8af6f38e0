"""Print the CMAKE_ARGS with which llama-cpp-python should be built on this machine.

    CMAKE_ARGS="$(python scripts/llamacpp_cmake_args.py)" pip install llama-cpp-python

A native x86 build takes in AMX where the CPU has it, and GCC 12 then makes code that crashes in
the first decode (its `ldtilecfg` loads a bad tile configuration). So there every instruction set
is named, as the CPU has it, and AMX never. Other CPUs are built for natively.
"""

from __future__ import annotations

import platform
from pathlib import Path

X86 = {"x86_64", "amd64", "i386", "i686"}

# What paceline never calls: image and audio input, and downloads over TLS.
UNUSED = ["-DLLAVA_BUILD=OFF", "-DLLAMA_OPENSSL=OFF"]

AVX512 = {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}

# ggml's options, and the flags of /proc/cpuinfo that each needs.
INSTRUCTIONS = {
    "GGML_SSE42": {"sse4_2"},
    "GGML_AVX": {"avx"},
    "GGML_F16C": {"f16c"},
    "GGML_FMA": {"fma"},
    "GGML_BMI2": {"bmi2"},
    "GGML_AVX2": {"avx2"},
    "GGML_AVX_VNNI": {"avx_vnni"},
    "GGML_AVX512": AVX512,
    "GGML_AVX512_VBMI": {*AVX512, "avx512vbmi"},
    "GGML_AVX512_VNNI": {*AVX512, "avx512_vnni"},
    "GGML_AVX512_BF16": {*AVX512, "avx512_bf16"},
}


def cmake_args(machine: str, cpuinfo: str) -> list[str]:
    """machine    as `platform.machine()` names it
    cpuinfo    the text of /proc/cpuinfo; empty where there is none"""
    if machine.lower() not in X86:
        return UNUSED
    flags = cpu_flags(cpuinfo)
    if not flags:  # not Linux: what ggml takes for granted, AVX2
        return ["-DGGML_NATIVE=OFF", *UNUSED]
    chosen = {name: "ON" if needs <= flags else "OFF" for name, needs in INSTRUCTIONS.items()}
    return ["-DGGML_NATIVE=OFF", *(f"-D{name}={on}" for name, on in chosen.items()), *UNUSED]


def cpu_flags(cpuinfo: str) -> set[str]:
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return set(value.split())
    return set()


def main() -> None:
    path = Path("/proc/cpuinfo")
    cpuinfo = path.read_text() if path.exists() else ""
    print(" ".join(cmake_args(platform.machine(), cpuinfo)))


if __name__ == "__main__":
    main()
