import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.errors import ConfigError, MissingResourceError
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig
from hgld.pipelines.hierarchy.encoders import embed
from hgld.pipelines.hierarchy.encoders.registry import make_encoder
from hgld.pipelines.stage import StageResult, StageRun, silent

NAMES = ["arch bridge", "art museum", "church building", "glacial lake", "lighthouse"]


def cleaned(folder: Path, names: list[str]) -> StageRun:
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(
        {"name": names, "landmarks": [1] * len(names)}, schema={"name": pl.String, "landmarks": pl.Int64}
    ).write_parquet(folder / "names.parquet")
    return StageRun("clean", folder, StageResult(), was_run=True, record={})


def config(encoder: str = "lexical") -> BuildConfig:
    return BuildConfig("sample", embed=EmbedConfig(encoder=encoder))


def test_the_stage_writes_unit_rows_and_says_who_made_them(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    run = embed.run(
        tmp_path / "stages",
        {"clean": cleaned(tmp_path / "clean", NAMES)},
        config(),
        lambda task, done, total: told.append((done, total)),
    )
    rows = np.load(run.path("embeddings.npy"), allow_pickle=False)
    assert rows.shape[0] == len(NAMES)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    about = json.loads(run.path("encoder.json").read_text())
    assert about == {
        "name": "lexical",
        "key": make_encoder("lexical", names=NAMES).key,
        "dim": rows.shape[1],
        "templates": [],
    }
    assert told[-1] == (len(NAMES), len(NAMES))


def test_a_second_run_does_nothing_and_other_names_make_other_files(tmp_path: Path) -> None:
    first = embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES)}, config(), silent)
    again = embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES)}, config(), silent)
    fewer = embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES[1:])}, config(), silent)
    assert (first.was_run, again.was_run, fewer.was_run) == (True, False, True)
    other = embed.run(tmp_path / "other", {"clean": cleaned(tmp_path / "clean", NAMES[1:])}, config(), silent)
    for file in ("embeddings.npy", "encoder.json"):
        assert fewer.path(file).read_bytes() == other.path(file).read_bytes()


def test_missing_weights_leave_no_stage_behind(tmp_path: Path) -> None:
    spec = f"clip:ViT-B-32/{tmp_path}/none.safetensors"
    with pytest.raises(MissingResourceError):
        embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES)}, config(spec), silent)
    assert not (tmp_path / "stages" / "embed").exists()


@pytest.mark.parametrize(
    ("spec", "found"),
    [("", "''"), ("word2vec", "word2vec"), ("clip", "'clip'"), ("sbert:", "sbert:"), ("lexical:x", "lexical:x")],
)
def test_an_unknown_encoder(spec: str, found: str) -> None:
    with pytest.raises(ConfigError, match=found):
        make_encoder(spec)


@pytest.mark.parametrize("template", ["a photo", "{} and {}", "{0}", "{name} {}"])
def test_a_template_has_one_place_for_the_name(template: str) -> None:
    with pytest.raises(ConfigError, match="expected one"):
        make_encoder("clip:ViT-B-32/openai", templates=[template])
