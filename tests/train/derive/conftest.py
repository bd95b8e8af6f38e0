"""The tiny models of the engine's tests serve here too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "engines"))
