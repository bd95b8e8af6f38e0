"""The one place where llama_cpp is imported, because something must be set before it is.

llama.cpp's threads wait for each other after every operation. GNU's OpenMP lets a waiting thread
turn in circles first, for about a millisecond; where another program wants that core, every
operation then waits for the scheduler. Measured on two cores with one other busy program, a 135M
model took 728 ms a token that way and 58 ms with a short wait; with nothing else running 20.5
against 16.6 ms (docs/log.md). So the wait is made short, unless the user has set it.
"""

from __future__ import annotations

import os

SPIN_COUNT = "1000"

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)

import llama_cpp  # noqa: E402 (its OpenMP reads the environment when it is loaded)

__all__ = ["llama_cpp"]


def openmp_wait() -> str:
    """How long OpenMP's threads turn in circles, for a measurement's facts."""
    policy = os.environ.get("OMP_WAIT_POLICY")
    return policy or f"spin count {os.environ.get('GOMP_SPINCOUNT', 'default')}"
