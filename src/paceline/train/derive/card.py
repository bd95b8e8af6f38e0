"""The model card that lies beside a derived draft."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import paceline

if TYPE_CHECKING:
    from paceline.train.derive.make import Derived
    from paceline.train.derive.write import Licence


def card(made: Derived, licence: Licence) -> str:
    """Markdown, with the front matter that model hubs read."""
    name = re.split(r"[\\/]", made.target.rstrip("\\/"))[-1]
    return f"""\
{_front_matter(made, licence)}# A draft for {name}

Made from {name} by Paceline {paceline.__version__}, to draft for it in speculative decoding.
{_contents(made)}
It was not trained after that: what it writes by itself is worth little.

## Use

```
paceline generate {name} -d {made.directory.name}
```

{_use(made)}

## Licence

{_terms(licence, name)}
"""


def _front_matter(made: Derived, licence: Licence) -> str:
    lines = [f"license: {licence.name}"] if re.fullmatch(r"[\w.+-]+", licence.name or "") else []
    named = re.fullmatch(r"[\w.-]+/[\w.-]+", made.target)
    if named and not Path(made.target).exists():
        lines.append(f"base_model: {made.target}")
    return "\n".join(["---", *lines, "library_name: transformers", "---", "", ""])


def _contents(made: Derived) -> str:
    numbers = ", ".join(map(str, made.layers))
    lines = [
        f"- Layers {numbers} (from 0) of {made.layers_of}.",
        f"- {made.tokens:,} tokens of {made.tokens_of:,}.",
        f"- {made.parameters / 1e6:.1f} million parameters of {made.parameters_of / 1e6:.1f} "
        f"million, in {made.dtype}.",
    ]
    return "\n" + "\n".join(lines) + "\n"


def _use(made: Derived) -> str:
    if made.covered is None:
        return (
            "Its vocabulary is the target's, so any engine that drafts with a model can use it as "
            "one."
        )
    return (
        "Its tokens have numbers of their own: `vocabulary_map.json` gives the target's number of "
        "each. Paceline\nreads it; another engine must be able to draft with a model of another "
        f"vocabulary.\nOf the corpus it was made with, {made.covered:.1%} of the tokens are kept."
    )


def _terms(licence: Licence, name: str) -> str:
    said = f"{name} is under {licence.name}" if licence.name else f"The terms are those of {name}"
    files = f", see {', '.join(licence.files)}" if licence.files else ""
    return f"{said}{files}. The weights are {name}'s, so its terms hold for them."
