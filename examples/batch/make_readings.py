"""Write the database that the batch reads: python make_readings.py [--sensors 50000] [--broken 31337]."""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
from contextlib import closing

from tasks import DATABASE


def main() -> None:
    """Make it anew; the readings of one sensor may be broken."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--sensors", type=int, default=50_000)
    parser.add_argument("--broken", type=int, help="the sensor whose readings are not numbers")
    given = parser.parse_args()
    DATABASE.unlink(missing_ok=True)
    with closing(sqlite3.connect(DATABASE)) as database, database:
        database.execute("CREATE TABLE sensors (id INTEGER PRIMARY KEY, readings TEXT NOT NULL)")
        rows = ((sensor, json.dumps(readings(sensor))) for sensor in range(1, given.sensors + 1))
        database.executemany("INSERT INTO sensors VALUES (?, ?)", rows)
        database.execute("""UPDATE sensors SET readings = '["21.5", "n/a"]' WHERE id = ?""", [given.broken])
    print(f"{given.sensors:,} sensors in {DATABASE.name}")


def readings(sensor: int) -> list[float]:
    """Twenty values around a mean of its own."""
    chance = random.Random(sensor)
    mean = chance.uniform(15, 25)
    return [round(chance.gauss(mean, 2), 2) for _ in range(20)]


if __name__ == "__main__":
    main()
