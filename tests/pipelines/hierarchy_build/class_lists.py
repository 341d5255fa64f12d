"""Builds of a list of class names, for the tests of what comes out."""

import csv

from hgld.pipelines.hierarchy.build import Build

THINGS = ["red apple", "green apple", "old apple", "oak", "red oak", "dry oak", "blue whale", "killer whale", "whale"]


def labels(made: Build) -> list[dict[str, str]]:
    with open(made.directory / "labels.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
