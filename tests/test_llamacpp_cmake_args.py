"""The build flags for llama-cpp-python, for CPUs other than the one the tests run on."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "llamacpp_cmake_args.py"

if not SCRIPT.exists():
    pytest.skip("scripts/ is not shipped with the tests", allow_module_level=True)

spec = importlib.util.spec_from_file_location("llamacpp_cmake_args", SCRIPT)
assert spec
assert spec.loader
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

AVX2 = "sse4_2 avx f16c fma bmi2 avx2"
AVX512 = f"{AVX2} avx512f avx512cd avx512vl avx512dq avx512bw avx512vbmi avx512_vnni"


def switched_on(flags: str, machine: str = "x86_64") -> set[str]:
    cpuinfo = f"processor\t: 0\nvendor_id\t: X\nflags\t\t: {flags}\nbugs\t\t: avx512_bf16\n"
    args = script.cmake_args(machine, cpuinfo)
    return {arg[2:-3] for arg in args if arg.endswith("=ON")}


def test_amx_is_never_built() -> None:
    args = script.cmake_args("x86_64", f"flags : {AVX512} avx512_bf16 amx_tile amx_int8 amx_bf16")
    assert "-DGGML_NATIVE=OFF" in args
    assert not any("AMX" in arg for arg in args)


def test_instructions_are_those_of_the_cpu() -> None:
    assert switched_on("sse4_2") == {"GGML_SSE42"}
    basic = {f"GGML_{name}" for name in ("SSE42", "AVX", "F16C", "FMA", "BMI2", "AVX2")}
    assert switched_on(AVX2) == basic
    more = {"GGML_AVX512", "GGML_AVX512_VBMI", "GGML_AVX512_VNNI"}
    assert switched_on(AVX512) == basic | more
    assert switched_on(AVX512.replace("avx512bw", "")) == basic


def test_other_cpus_are_built_for_natively() -> None:
    assert not any("GGML" in arg for arg in script.cmake_args("aarch64", "flags: fp asimd"))


def test_x86_without_cpuinfo_is_not_built_natively() -> None:
    assert "-DGGML_NATIVE=OFF" in script.cmake_args("AMD64", "")
