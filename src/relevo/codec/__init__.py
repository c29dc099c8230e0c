"""Values <-> bytes: JSON typed by a function's signature.

One rule stands behind everything here: a value is accepted only if the bytes made of it, read back
the way the worker will read them, give an equal value. So encoding *is* write, read, compare, and there
is no list of allowed types to keep in step with msgspec. When the comparison fails, and only then,
`refusal` takes the time to find which part of which argument is at fault and says so.

"Equal" means `==`: a member of an IntEnum passed to a parameter without annotation comes back as its int.
"""

from relevo.codec.signature import Signature

__all__ = ["Signature"]
