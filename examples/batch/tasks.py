"""The tasks. `interval` computes, so it runs in child processes, one for each core."""

from __future__ import annotations

import csv
import json
import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from relevo import Relevo

#: `dead_max`: a batch that failed can run again if all its cancelled jobs are kept, and the largest has 50,000.
app = Relevo("batch", dead_max=100_000)

#: A table of sensors, each with its readings as JSON.
DATABASE = Path(os.environ.get("READINGS", "readings.db")).resolve()
RESAMPLES = 200
#: A batch is found by its name for so long after it began, whatever became of it.
KEPT = "7d"


class Interval(Struct, frozen=True):
    """The mean of a sensor, and the bounds between which it lies with 95 % confidence."""

    sensor: int
    mean: float
    low: float
    high: float


@app.task(executor="process", timeout="1m", give_up_on=[ValueError])
def interval(sensor: int) -> Interval:
    """Read a sensor's values and compute the interval: milliseconds of nothing but computing."""
    values = readings(sensor)
    chance = random.Random(sensor)  # the same result, however often it runs
    means = sorted(fmean(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return Interval(sensor, fmean(values), means[RESAMPLES // 40], means[-RESAMPLES // 40])


@app.task(result_ttl=KEPT)
def save(intervals: list[Interval], name: str) -> str:
    """The last job, which gets the results of all others: write them to a file."""
    path = DATABASE.with_name(f"{name}.csv")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(Interval.__struct_fields__)
        rows.writerows((one.sensor, one.mean, one.low, one.high) for one in intervals)
    return f"{len(intervals):,} intervals in {path.name}"


def readings(sensor: int) -> list[float]:
    """The values of a sensor; ValueError if they are not numbers, which no retry changes."""
    with closing(sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True)) as database:
        [[text]] = database.execute("SELECT readings FROM sensors WHERE id = ?", [sensor])
    try:
        return [float(value) for value in json.loads(text)]
    except ValueError as error:
        raise ValueError(f"sensor {sensor}: {error}") from None
