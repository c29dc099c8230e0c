"""Values <-> bytes: JSON typed by a function's signature.

One rule: a value is accepted only if its bytes, decoded as the worker will decode them, give an equal
value. So encoding is write, read, compare, and there is no list of allowed types to keep in step with
msgspec. Only when the comparison fails does `refusal` search for the part of the argument at fault.

"Equal" means `==`: a member of an IntEnum passed to a parameter without annotation comes back as its int.
"""

from relevo.codec.signature import Signature

__all__ = ["Signature"]
