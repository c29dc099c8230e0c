"""The position of a loop: the finished items of this and earlier runs, and whether that is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from relevo.checkpoints.keeping import signature_of
from relevo.errors import ConfigurationError, PayloadError

T = TypeVar("T")
_NOTHING: Any = object()


class Mark(Struct, frozen=True, omit_defaults=True):
    """A position as stored."""

    #: finished items, in all runs
    n: int = 0
    #: the key of the last one
    at: Raw | UnsetType = UNSET
    is_over: bool = msgspec.field(name="over", default=False)


_read = msgspec.json.Decoder(Mark).decode
_write = msgspec.json.Encoder().encode


class Position(Generic[T]):
    """The position in memory; makes no calls to the server."""

    def __init__(self, name: str, key: Callable[[T], Any] | None, most: int) -> None:
        self._name = name
        self._key = key
        self._most = most
        self._keys = None if key is None else signature_of(key)
        #: finished items
        self.n = 0
        #: the source is exhausted
        self.is_over = False
        #: the last finished item is not in the stored mark
        self.is_unwritten = False
        #: key of the last finished item, and of the current one
        self._at: Any = None
        self._next: Any = _NOTHING
        self._is_checked = False
        #: to skip: a number of items, or all up to this key
        self._behind = 0
        self._sought: Any = _NOTHING

    def take_up(self, raw: bytes | None) -> Any:
        """Restore the mark of an earlier run; returns the position after which to continue, None at first."""
        if raw is None:
            return None
        try:
            mark = _read(raw)
        except msgspec.DecodeError as error:
            raise PayloadError(f"iterate {self._name!r}: its position cannot be read: {error}") from error
        self.n, self.is_over = mark.n, mark.is_over
        if self.is_over or not self.n:
            return None
        if self._keys is None:
            return self.n
        if mark.at is UNSET:
            raise ConfigurationError(
                f"iterate {self._name!r}: an earlier run kept a count, {self.n}, and now there is a key. "
                "Was it another version? Give the loop another name to start it again."
            )
        try:
            self._at = self._keys.decode_result(mark.at)
        except PayloadError as misfit:
            raise PayloadError(
                f"iterate {self._name!r}: the position that an earlier run kept does not fit the key as it is now: "
                f"{misfit}. Was it another version? Give the loop another name to start it again."
            ) from misfit
        return self._at

    def pass_over(self) -> None:
        """Skip finished items: the source begins at its start again."""
        if self._key is None:
            self._behind = self.n
        elif self.n:
            self._sought = self._at

    def is_behind(self, item: T) -> bool:
        """Whether an earlier run has finished this item."""
        if self._behind:
            self._behind -= 1
            return True
        if self._sought is _NOTHING:
            return False
        assert self._key is not None
        if self._key(item) == self._sought:
            self._sought = _NOTHING
        return True

    def hand_out(self, item: T) -> T:
        """Begin an item."""
        # The key is read before the work, which may change the item.
        self._next = None if self._key is None else self._key(item)
        if not self._is_checked:  # a key that cannot be stored is refused before any work is done
            self._is_checked = True
            self._encoded(self._next)
        return item

    def arrive(self) -> None:
        """The next item is requested, so the current one is finished."""
        if self._next is not _NOTHING:
            self._at, self._next = self._next, _NOTHING
            self.n += 1
            self.is_unwritten = True

    def end(self) -> None:
        """The source is exhausted."""
        if self._sought is not _NOTHING:
            raise ConfigurationError(
                f"iterate {self._name!r}: an earlier run worked on everything up to {self._sought!r:.80}, and the "
                "source does not give that item any more; use a function as source, which gets the position"
            )
        self.is_over = True

    def mark(self) -> bytes:
        """The position, encoded for the store."""
        return _write(Mark(self.n, self._encoded(self._at) if self.n else UNSET, self.is_over))

    def _encoded(self, at: Any) -> Raw | UnsetType:
        if self._keys is None:
            return UNSET
        try:
            return Raw(self._keys.encode_result(at, limit=self._most))
        except PayloadError as refused:
            raise PayloadError(f"iterate {self._name!r}: what key gives cannot be kept: {refused}") from refused
