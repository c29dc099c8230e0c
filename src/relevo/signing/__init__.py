"""Signatures: with the setting `signing_keys`, jobs, messages and results are accepted only from processes with a key.

A signature (HMAC-SHA256) covers the kind of object, the queue it belongs to, its id, and every byte of it.
"""

from relevo.signing.keyring import Keyring
from relevo.signing.signer import Signer

__all__ = ["Keyring", "Signer"]
