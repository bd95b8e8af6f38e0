"""What all plots share: matplotlib where it is installed, colours for eyes that can't tell red from
green, and a second sign beside each colour."""

from __future__ import annotations

from typing import Any

from paceline.errors import SettingError

# Okabe and Ito's colours, without yellow, which is too faint on white.
STYLES = (
    ("#0072B2", "-", "o"),
    ("#D55E00", "--", "s"),
    ("#009E73", "-.", "^"),
    ("#CC79A7", (0, (1, 1)), "D"),
    ("#E69F00", (0, (5, 1)), "v"),
    ("#56B4E9", (0, (3, 1, 1, 1)), "P"),
    ("#000000", (0, (8, 2)), "X"),
)


def figure_class(hint: str) -> Any:
    """matplotlib's Figure, which draws into a file and needs neither pyplot nor a screen. Raises
    SettingError without matplotlib.

    hint    what to install, or to do without
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("A plot needs matplotlib, which is not installed.", hint) from None
    return Figure


def bare(panel: Any) -> None:
    """Take away the frame that holds no axis."""
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
