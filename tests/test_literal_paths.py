"""File names with ``[ ] * ?``, which libraries may read as patterns, work in all commands."""

import numpy as np
import polars as pl

from tests.fake_releases.pictures import jpeg


def test_shard_commands_accept_folder_names_with_glob_characters(output, json_of, no_figures, tmp_path):
    place = tmp_path / "o?t[1]*"
    (place / "images").mkdir(parents=True)
    (tmp_path / "out1").mkdir()  # "o?t[1]*" as a glob pattern would match this folder
    rng = np.random.default_rng(0)
    rows = []
    for n in range(12):
        (place / "images" / f"{n}.jpg").write_bytes(jpeg(rng))
        rows.append({"image": f"{n}.jpg", "fine": f"c{n // 3}", "coarse": f"g{n // 6}"})
    pl.DataFrame(rows).write_csv(place / "labels.csv")
    shards = ("--images", place / "images", "--levels", "fine,coarse", "--workers", 1, "--out", place / "shards")
    output("build-shards", "manifest", "--source", place / "labels.csv", *shards)
    output("verify", place / "shards", "--decode", "--json")
    output("index", place / "shards", "--force")
    pl.DataFrame(rows).select("fine", "coarse").write_parquet(place / "l.parquet")
    np.save(place / "e.npy", rng.normal(size=(12, 4)).astype(np.float32))
    files = ("--embeddings", place / "e.npy", "--labels", place / "l.parquet", "--levels", "fine,coarse")
    values = json_of("evaluate", *files, "--out", place / "run.json")["values"]
    assert 0 <= values["AP/fine"] <= 1
    output("report", place / "run.json", "--out", place / "report.html")
    assert (place / "report.html").is_file()
