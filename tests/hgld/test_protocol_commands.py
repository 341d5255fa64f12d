"""Protocols by the command: a dataset with its tables and embeddings in files, values that a hand computed."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.cli import main
from hgld.data.format import MANIFEST
from hgld.data.index import TABLES
from tests.hgld.small_dataset import Item, write_dataset


def made(folder: Path, protocol: str, rows, *, judgements=(), lists=()) -> tuple[Path, pl.Series]:
    """A dataset of no images: rows of (split, labels), keys SPLIT/0000 by their number."""
    items = [Item(labels, split, b"%d" % number) for number, (split, labels) in enumerate(rows)]
    tables = {
        "judgements": pl.DataFrame(judgements, TABLES["judgements.parquet"], orient="row") if judgements else None,
        "lists": pl.DataFrame(lists, TABLES["lists.parquet"], orient="row") if lists else None,
    }
    index = write_dataset(folder, items, **tables)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | {"protocol": protocol}))
    return folder, index["key"]


def directions(degrees) -> np.ndarray:
    """Unit vectors in a plane: what is nearest is read off the angles."""
    angles = np.deg2rad(np.array(degrees, np.float64))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def evaluated(capsys, folder: Path, angles: dict[str, float], *flags):
    """The command's JSON for a dataset, of embeddings by key; or its error."""
    np.save(folder / "e.npy", directions(list(angles.values())))
    pl.DataFrame({"key": list(angles)}).write_parquet(folder / "e.labels.parquet")
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "--embeddings", str(folder / "e.npy"), "--data", str(folder), "--json", *flags])
    printed = capsys.readouterr()
    if stop.value.code == 0:
        return json.loads(printed.out)
    assert stop.value.code == 2
    assert not printed.out
    return printed.err


def test_leave_one_out_by_hand(tmp_path, capsys):
    """At 0, 10, 25 and 90 degrees: nearest to the first is the second, to the second the first, to the others the third
    and the second."""
    folder, keys = made(tmp_path / "d", "sop", [("test", labels) for labels in [(0, 0), (0, 0), (1, 0), (1, 0)]])
    found = evaluated(capsys, folder, dict(zip(keys, [0, 10, 25, 90], strict=True)))
    values = found["values"]
    assert values["R@1/fine"] == pytest.approx(3 / 4)  # the third's nearest is the second
    assert values["AP/fine"] == pytest.approx((1 + 1 + 1 / 3 + 1) / 4)
    assert values["AP/coarse"] == 1
    assert (found["settings"]["protocol"], found["settings"]["dataset"]) == ("sop", "small")


def test_revisited_by_hand(tmp_path, capsys):
    """One query at 0 degrees; junk before everything, then easy, a negative, hard."""
    rows = [("query", (-1, -1)), *[("gallery", (-1, -1))] * 4, ("distractors", (-1, -1))]
    judged = [("query/0000", f"gallery/{i:04d}", verdict) for i, verdict in ((1, "junk"), (2, "easy"), (4, "hard"))]
    folder, _ = made(tmp_path / "d", "revisited", rows, judgements=judged)
    angles = {"query/0000": 0, "gallery/0001": 5, "gallery/0002": 10, "gallery/0003": 20, "gallery/0004": 30}
    found = evaluated(capsys, folder, angles | {"distractors/0005": 8})
    values = found["values"]
    assert values["mAP/easy"] == values["mP@1/easy"] == 1
    assert values["mAP/hard"] == pytest.approx((0 + 1 / 2) / 2)
    assert values["mAP/medium"] == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    assert values["mP@5/medium"] == pytest.approx(2 / 3)
    assert values["mAP/easy+distractors"] == pytest.approx((0 + 1 / 2) / 2)
    assert found["settings"]["distractors"] == 1
    lacking = evaluated(capsys, folder, {key: angle for key, angle in angles.items() if key != "gallery/0004"})
    assert "mAP/hard" not in lacking["values"] or lacking["values"]["mAP/hard"] is None
    assert lacking["settings"]["judgements_left_out"] == 1
    assert lacking["settings"]["without_embeddings"] == {"gallery": 1, "distractors": 1}


def test_holidays_by_hand(tmp_path, capsys):
    """Queries 0 and 3 of two groups; the other query is ranked too, and before the relevant image of the first."""
    rows = [("test", labels) for labels in [(0, -1), (0, -1), (0, -1), (1, -1), (1, -1)]] + [("distractors", (-1, -1))]
    queries = [("queries", "test/0000"), ("queries", "test/0003")]
    folder, _ = made(tmp_path / "d", "holidays", rows, lists=queries)
    angles = {f"test/{number:04d}": angle for number, angle in enumerate([0, 5, 30, 10, 80])}
    found = evaluated(capsys, folder, angles | {"distractors/0005": 170})
    # the first finds 1, then the other query, then 2; the second finds 1, 0, 2 before its own
    first, second = (1 + (1 / 2 + 2 / 3) / 2) / 2, (0 + 1 / 4) / 2
    assert found["values"]["mAP"] == pytest.approx((first + second) / 2)
    assert found["settings"]["protocol"] == "holidays"
    del angles["test/0000"]  # an image that could not be read
    alone = evaluated(capsys, folder, angles)
    assert alone["values"]["mAP"] == pytest.approx((0 + 1 / 3) / 2)
    assert alone["settings"]["without_embeddings"] == {"test": 1, "distractors": 1}


def test_ukbench_by_hand(tmp_path, capsys):
    """Two objects, the last image of the first among those of the second, where it finds itself alone."""
    folder, _ = made(tmp_path / "d", "ukbench", [("test", (i // 4, -1)) for i in range(8)])
    angles = {f"test/{number:04d}": angle for number, angle in enumerate([0, 1, 2, 83, 80, 81, 82, 84.5])}
    found = evaluated(capsys, folder, angles)
    first = (3 + 3 + 3 + 1) / 4
    second = 3  # of 80, 81, 82 and 84.5 each finds 83 and lacks the one that is farthest
    assert found["values"] == {"N-S": pytest.approx((first + second) / 2)}
