"""Arguments read by position: calls have fewer than ten, and structs of more than five fields take them by name.

python -m tools.keywords         exit code 1: a call or a struct has more
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "relevo"
#: Arguments of a call, and fields of a struct, that may be positional.
OF_A_CALL, OF_A_STRUCT = 9, 5
#: Structs that are made for each job, call or name: by position in many places, their first fields being what counts.
PER_JOB = {
    "engine/context.py": ("JobContext",),
    "engine/edges.py": ("Report",),
    "engine/job.py": ("Envelope", "Attempt", "Story", "Record"),
    "engine/job_store.py": ("Seen",),
    "engine/message.py": ("Headers",),
    "engine/push.py": ("NewJob",),
    "engine/settle.py": ("Failure", "Held", "Terms"),
    "engine/turn.py": ("Moved", "Turn"),
    "queues/store.py": ("Listed",),
    "worker/executors/process_messages.py": ("KeptAt",),
    "worker/run.py": ("Run",),
    "bus/delivery_store.py": ("Event",),
    "codec/annotations.py": ("Slot",),
    "store/endpoint.py": ("Endpoint",),
    "store/plan.py": ("Call",),
    "text/names.py": ("Address",),
}


def found() -> Iterator[str]:
    """Each place, as `file:line: what is wrong`."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(func=func, args=args) if len(args) > OF_A_CALL:
                    yield f"src/relevo/{name}:{node.lineno}: {ast.unparse(func)} gets {len(args)} arguments by position"
                case ast.ClassDef(name=struct) if struct not in PER_JOB.get(name, ()) and _is_positional(node):
                    yield f"src/relevo/{name}:{node.lineno}: {struct} has more than {OF_A_STRUCT} fields: kw_only=True"


def _is_positional(node: ast.ClassDef) -> bool:
    is_struct = any(isinstance(base, ast.Name) and base.id == "Struct" for base in node.bases)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one)]
    return is_struct and len(fields) > OF_A_STRUCT and all(keyword.arg != "kw_only" for keyword in node.keywords)


def main() -> int:
    """Print them."""
    places = list(found())
    print("\n".join(places), file=sys.stderr, end="\n" if places else "")
    return int(bool(places))


if __name__ == "__main__":
    sys.exit(main())
