"""A bank that is away at the first try, and refuses the card of order 13."""

from __future__ import annotations


class BankAway(Exception):
    """Nothing was paid; another try may help."""


class CardRefused(Exception):
    """Nothing was paid, and another try does not change that."""


class Bank:
    """A connection that is opened once per worker process."""

    @classmethod
    def connected(cls) -> Bank:
        """Open it."""
        return cls()

    def close(self) -> None:
        """Close it."""

    def pay(self, order: int, cents: int, *, first_try: bool) -> str:
        """Take the money; the number of the payment."""
        if order == 13:
            raise CardRefused(f"order {order}: {cents} cents")
        if first_try:
            raise BankAway("no answer")
        return f"payment {order}-{cents}"
