"""Lists words of before the house was drawn anew that are left: identifiers, options, JSON keys,
messages, comments and documents. Prints nothing and exits 0 when there are none.

    python scripts/old_words.py [FILE ...]
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

# Whole parts of an identifier, such as `law` in `next_laws`: anywhere in the code.
IDENTIFIERS = re.compile(
    r"(?<![a-z])(laws?|chances?|foreseeable|foreseen|foresee|look_back|looks_back"
    r"|draft_limit|survivals?|departures?|accounts?|notices?|remarks?|facts|cure|times_plain"
    r"|equal_to_plain|stretch(?:es)?|spans?|mend|mended|quicken|hope|lap|twins?|trial|settle"
    r"|outright)(?![a-z])",
    re.IGNORECASE,
)
# Words in messages, comments and documents.
PROSE = re.compile(
    r"\b(next-token laws?|laws?|chosen outright|foreseeable|survival|times plain|plain decoding"
    r"|departures?|by chance|cures?|laps?|quicken(?:ed|s)?|mend(?:ed|s)?|remarks?|notices"
    r"|is no (?:file|GGUF|JSON|bench|plan)|look(?:s|ed)? back|take (?:it|them) away)\b",
    re.IGNORECASE,
)
KEPT = {
    # field's own terms that look like ours
    "service_account", "ServiceAccount", "automountServiceAccountToken", "account_for",
    "entry_points",
}  # fmt: skip
SKIPPED = ("CHANGELOG.md", "docs/log.md", "docs/glossary.md", "scripts/old_words.py")
LAYER_LAW = re.compile(r"\b(layer laws?|laws? a reader|chain rule|is a law, and)\b", re.IGNORECASE)


def code_findings(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", token.string)
            if token.string not in KEPT and IDENTIFIERS.search(name):
                yield token.start[0], token.string
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from prose_findings(token.string, token.start[0])


def prose_findings(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), first):
        for found in PROSE.finditer(LAYER_LAW.sub("", line)):
            yield number, found.group(0)


def main(names: list[str]) -> int:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True)
    files = names or [
        name
        for name in listed.stdout.splitlines()
        if name.endswith((".py", ".md")) and "results/" not in name and name not in SKIPPED
    ]
    left = 0
    for name in files:
        text = Path(name).read_text(encoding="utf-8")
        findings = code_findings(text) if name.endswith(".py") else prose_findings(text)
        for number, word in findings:
            print(f"{name}:{number}: {word}")
            left += 1
    print(f"{left} old words are left.", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
