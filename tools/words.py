"""Words that hide who does what, counted in the source and the documentation: their number may only fall.

python -m tools.words            exit code 1: there are more than the budget; if there are fewer, lower it
python -m tools.words --list     each line
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
WORDS = (
    *("nobody", "somebody", "everybody", "anybody", "whoever", "stranger", "strangers"),
    *("told", "said", "hears", "heeds", "obey", "obeys", "vouch", "vouches", "goodbye"),
    *("believe", "believes", "believed", "mend", "mends", "mended", "worked off"),
    *("meanwhile", "of late", "thereby", "whereupon"),
)
WHERE = ("src", "docs")
ENDINGS = (".py", ".lua", ".md")
#: Lines that hold one of them. Lower it with each change that rewrites some.
BUDGET = 0

_PATTERN = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)


def lines() -> list[str]:
    """Each line that holds one of the words, as `file:number: text`."""
    files = sorted(path for name in WHERE for ending in ENDINGS for path in (HERE / name).rglob(f"*{ending}"))
    found = []
    for path in (*files, HERE / "README.md"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if _PATTERN.search(line):
                found.append(f"{path.relative_to(HERE)}:{number}: {line.strip()}")
    return found


def main(arguments: list[str]) -> int:
    """Compare their number with the budget."""
    found = lines()
    if "--list" in arguments:
        print("\n".join(found))
    if len(found) == BUDGET:
        return 0
    advice = "use the words of the field" if len(found) > BUDGET else f"set BUDGET = {len(found)} in tools/words.py"
    print(f"{len(found)} lines hold a word of tools/words.py; the budget is {BUDGET}: {advice}", file=sys.stderr)
    return int(len(found) > BUDGET)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
