"""A module of plain functions, as a program has them. It does not know relevo."""

from __future__ import annotations


def price(cents: int, *, pieces: int = 1) -> int:
    return cents * pieces


async def ship(parcel: str) -> str:
    return f"{parcel} is on its way"
