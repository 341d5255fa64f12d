from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgld.errors import ConfigError
from hgld.pipelines.hierarchy.config import EmbedConfig
from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder
from hgld.pipelines.hierarchy.encoders.registry import JoinedEncoder, make_encoder
from hgld.pipelines.hierarchy.evidence import embed
from hgld.pipelines.stage import StageResult, StageRun, silent

NAMES = ["lake", "pond", "stone bridge", "castle"]


class Counting:
    """A stand-in for a model: fixed rows by the name's length, and a note of what it was asked."""

    name, key, templates, dim = "counting", "counting/1", (), 3

    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, names, progress=silent):
        self.asked += names
        rows = np.array([[len(name), 1.0, 0.0] for name in names], dtype=np.float32).reshape(-1, 3)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_cosine_is_the_mean_of_both():
    one, other = Counting(), LexicalEncoder(NAMES)
    joined = JoinedEncoder(one, other)
    rows = joined.encode(NAMES)
    assert rows.shape == (len(NAMES), joined.dim)
    a, b = one.encode(NAMES), other.encode(NAMES)
    np.testing.assert_allclose(rows @ rows.T, (a @ a.T + b @ b.T) / 2, atol=1e-6)


def test_text_that_one_part_does_not_know_rests_on_the_other():
    rows = JoinedEncoder(Counting(), LexicalEncoder(NAMES)).encode(["qqq"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


def test_new_names_cost_the_model_only_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = Counting()

    def encoder_of(path: Path, config: EmbedConfig, domain: str) -> JoinedEncoder:
        return JoinedEncoder(model, LexicalEncoder(pl.read_parquet(path)["name"].to_list()))

    monkeypatch.setattr(embed, "encoder_of", encoder_of)
    for names in (NAMES, [*NAMES, "mosque"]):
        cleaned = tmp_path / f"clean{len(names)}"
        cleaned.mkdir()
        pl.DataFrame({"name": sorted(names)}).write_parquet(cleaned / "names.parquet")
        run = StageRun("clean", cleaned, StageResult(), True, {})
        embed.run(tmp_path, run, EmbedConfig(encoder="x+lexical", cache=tmp_path / "cache"), silent)
    assert sorted(model.asked) == sorted([*NAMES, "mosque"])
    assert np.load(tmp_path / "embed" / "embeddings.npy").shape[0] == len(NAMES) + 1


def test_how_a_joined_encoder_is_named(tmp_path: Path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match=r"expected one of .* any but lexical may be followed by \+lexical"):
        make_encoder("bert+lexical", names=NAMES)
    with pytest.raises(ConfigError, match=r"expected one of"):
        make_encoder("+lexical", names=NAMES)
