"""A module of plain functions that does not import relevo."""

from __future__ import annotations


def price(cents: int, *, pieces: int = 1) -> int:
    return cents * pieces


async def ship(parcel: str) -> str:
    return f"{parcel} is on its way"
