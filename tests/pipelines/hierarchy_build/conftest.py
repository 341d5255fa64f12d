"""Small finished builds, for the tests of their results."""

import csv
import shutil
from dataclasses import replace

import numpy as np
import pytest

from hgld.pipelines.hierarchy.build import build_hierarchy
from hgld.pipelines.hierarchy.config import BuildConfig, ClusterConfig, EmbedConfig, ReviewConfig, TopLevelConfig
from hgld.pipelines.hierarchy.encoders import embed
from hgld.pipelines.hierarchy.groups import cluster, evidence, toplevel
from hgld.pipelines.hierarchy.names import clean
from hgld.pipelines.hierarchy.review import review
from hgld.pipelines.stage import silent
from tests.pipelines.test_clean import scraped

THINGS = ["red apple", "green apple", "old apple", "oak", "red oak", "dry oak", "blue whale", "killer whale", "whale"]
HOSTILE = '<script>alert(1)</script> "quoted", $x$ | =cmd'
ROWS = [
    ("index", 1, "found", [("lake", "Q23397")]),
    ("index", 2, "missing", []),
    ("train", 1, "found", [("cathedral", "Q2977")]),
    ("train", 2, "found", [("Cathedral", "Q2977"), ("Wikimedia category", None)]),
    ("train", 3, "found", [("bridge", "Q12280")]),
    ("train", 4, "no-item", []),
    ("train", 5, "found", [(HOSTILE, None)]),
    ("train", 6, "found", [("mountain", "Q8502")]),
    ("train", 7, "found", [("a|b\\c", None), ("lake", None)]),
]
GRAPH = [
    ("Q12280", "bridge", "en", ["Q811979"]),
    ("Q23397", "lake", "en", ["Q271669"]),
    ("Q271669", "landform", "en", []),
    ("Q2977", "cathedral", "en", ["Q811979"]),
    ("Q811979", "architectural structure", "en", []),
    ("Q8502", "mountain", "en", ["Q271669"]),
]


class LengthEncoder:
    """Encoder whose vectors depend only on the lengths of names; it keeps its arguments."""

    def __init__(self, spec, *, templates, device, batch_size):
        self.made = (spec, templates, device, batch_size)
        self.name, self.key, self.templates, self.dim = spec, repr(self.made), templates, 2

    def encode(self, names, progress=silent):
        angles = np.array([len(name) for name in names]) / 20
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture(scope="session")
def tiny_stages(tmp_path_factory):
    """``tiny_stages(root, *decisions)`` returns copies of the stages from scrape to review on nine landmarks."""
    options = {"cluster": ClusterConfig(groups=5), "toplevel": TopLevelConfig(margin=0.95)}
    config = BuildConfig("sample", embed=EmbedConfig("lexical"), **options)
    first = tmp_path_factory.mktemp("stages")
    runs = {"scrape": scraped(first, ROWS, GRAPH)}
    for stage in (clean, embed, evidence, cluster, toplevel):
        run = stage.run(first, runs, config, silent)
        runs[run.name] = run

    def make(root, *decisions):
        shutil.copytree(first, root, dirs_exist_ok=True)
        stages = {name: replace(run, directory=root / name) for name, run in runs.items()}
        decided = ReviewConfig(decisions)
        stages["review"] = review.run(root, stages["cluster"], stages["toplevel"], decided, silent)
        return stages

    return make


@pytest.fixture
def build(tmp_path):
    """Build a list of names with the encoder that needs no weights."""

    def make(text, out="out", **options):
        file = tmp_path / "list.csv"
        file.write_text(text if isinstance(text, str) else "\n".join(text))
        config = BuildConfig("classes", (("classes", file),), **{"embed": EmbedConfig("lexical"), **options})
        return build_hierarchy(tmp_path / out, config, silent)

    return make


def labels(made):
    """Return the rows of a build's ``labels.csv``."""
    with open(made.directory / "labels.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_decisions(file, *entries):
    """Write the decisions of the annotator whom the file is named after, such as ``action: drop, names: [lake]``."""
    rows = [
        f'- {{{entry}, who: {file.stem}, when: "2026-11-21T09:{i:02}:00Z", why: "<i>{file.stem}</i> says so"}}\n'
        for i, entry in enumerate(entries)
    ]
    file.write_text(f"schema_version: 1\nrole: annotator\ndecisions:\n{''.join(rows)}")
    return file
