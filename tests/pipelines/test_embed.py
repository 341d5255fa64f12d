import json
import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.errors import ConfigError, MissingResourceError, StorageError
from hgld.pipelines.hierarchy.config import BuildConfig, EmbedConfig
from hgld.pipelines.hierarchy.encoders.registry import make_encoder
from hgld.pipelines.hierarchy.evidence import embed
from hgld.pipelines.hierarchy.evidence.embed import EmbeddingCache
from hgld.pipelines.stage import Progress, StageResult, StageRun, silent

NAMES = ["arch bridge", "art museum", "church building", "glacial lake", "lighthouse"]


class CountingEncoder:
    """Rows that depend on the name alone; remembers what it was asked for."""

    name, templates, dim = "counting", (), 4

    def __init__(self, key: str = "k", dies_after: int = 1 << 30) -> None:
        self.key, self.asked, self._left = key, [], dies_after

    def encode(self, names: Sequence[str], progress: Progress = silent) -> np.ndarray:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        self.asked += names
        rows = np.array([[len(name), name.count("a"), name.count("e"), 1] for name in names], dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def cleaned(folder: Path, names: list[str]) -> StageRun:
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(
        {"name": names, "landmarks": [1] * len(names)}, schema={"name": pl.String, "landmarks": pl.Int64}
    ).write_parquet(folder / "names.parquet")
    return StageRun("clean", folder, StageResult(), was_run=True, record={})


def config(tmp_path: Path, encoder: str = "lexical") -> BuildConfig:
    return BuildConfig("sample", embed=EmbedConfig(encoder=encoder, cache=tmp_path / "cache"))


def test_the_stage_writes_unit_rows_and_says_who_made_them(tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    run = embed.run(
        tmp_path / "stages",
        {"clean": cleaned(tmp_path / "clean", NAMES)},
        config(tmp_path),
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
    first = embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES)}, config(tmp_path), silent)
    again = embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES)}, config(tmp_path), silent)
    fewer = embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES[1:])}, config(tmp_path), silent)
    assert (first.was_run, again.was_run, fewer.was_run) == (True, False, True)
    other = embed.run(tmp_path / "other", {"clean": cleaned(tmp_path / "clean", NAMES[1:])}, config(tmp_path), silent)
    for file in ("embeddings.npy", "encoder.json"):
        assert fewer.path(file).read_bytes() == other.path(file).read_bytes()


def test_only_new_names_are_embedded(tmp_path: Path) -> None:
    encoder = CountingEncoder()
    cache = EmbeddingCache(tmp_path, encoder.key)
    embed.embed_names(encoder, NAMES[:3], cache, silent)
    rows = embed.embed_names(encoder, NAMES, cache, silent)
    assert sorted(encoder.asked) == sorted(NAMES)
    np.testing.assert_array_equal(rows, CountingEncoder().encode(NAMES))


def _embed_and_die(folder: Path, names: list[str]) -> None:
    embed.embed_names(CountingEncoder(dies_after=2), names, EmbeddingCache(folder, "k"), silent)


def test_killed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path) -> None:
    names = [f"name {i}" for i in range(5000)]
    process = multiprocessing.get_context("spawn").Process(target=_embed_and_die, args=(tmp_path, names))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    encoder = CountingEncoder()
    rows = embed.embed_names(encoder, names, EmbeddingCache(tmp_path, "k"), silent)
    assert len(encoder.asked) == 5000 - 2 * 1024
    np.testing.assert_array_equal(rows, CountingEncoder().encode(names))


@pytest.mark.parametrize("name", ["", "it's", 'a "b"', "<script>", "名前", "x' OR '1'='1", "a" * 10_000])
def test_any_name_can_be_kept(tmp_path: Path, name: str) -> None:
    cache = EmbeddingCache(tmp_path, "k")
    row = np.array([[0.6, 0.8]], dtype=np.float32)
    cache.put([name], row)
    np.testing.assert_array_equal(cache.get([name, "another"])[name], row[0])
    assert cache.get(["another"]) == {}


def test_a_damaged_cache_is_named_with_the_way_out(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path, "k")
    cache.path.write_bytes(b"not a database, whatever its name says" * 40)
    with pytest.raises(StorageError, match=r"Delete the file"):
        EmbeddingCache(tmp_path, "k")


def test_missing_weights_leave_no_stage_behind(tmp_path: Path) -> None:
    spec = f"clip:ViT-B-32/{tmp_path}/none.safetensors"
    with pytest.raises(MissingResourceError):
        embed.run(tmp_path / "stages", {"clean": cleaned(tmp_path / "clean", NAMES)}, config(tmp_path, spec), silent)
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
