"""Signatures: with the setting `signing_keys`, what is stored is believed only if a process with a key wrote it.

A signature (HMAC-SHA256) covers what something is (`kind`), the queue it belongs to, its id, and every byte of it.
"""

from relevo.signing.keyring import Keyring
from relevo.signing.signer import Signer

__all__ = ["Keyring", "Signer"]
