"""Builds, verify and every reader accept the same image formats."""

import numpy as np
import polars as pl

import hgld
from hgld.data.format import IMAGE_FORMATS, IMAGE_SUFFIXES, REJECTED
from hgld.pipelines.check.verify import verify
from hgld.pipelines.shards.build import build_shards
from hgld.pipelines.shards.config import SourceConfig
from hgld.pipelines.shards.sources.own_images import IMAGE_SUFFIXES as SOUGHT
from hgld.pipelines.stage import silent
from tests.pipelines.tiny_shards import picture
from tests.pipelines.toy_release import SMALL

_FORMAT = {suffix: form for form, suffixes in IMAGE_FORMATS.items() for suffix in suffixes}
_OTHERS = {"bmp": "BMP", "tif": "TIFF", "tiff": "TIFF"}


def test_every_image_format_that_build_accepts_is_verified_and_decoded(tmp_path):
    assert {f".{suffix}" for suffix in (*IMAGE_SUFFIXES, *_OTHERS)} == SOUGHT
    source, out = tmp_path / "source", tmp_path / "out"
    for number, (suffix, form) in enumerate({**_FORMAT, **_OTHERS}.items()):
        for name in ("cat", "dog"):
            (source / name).mkdir(parents=True, exist_ok=True)
            (source / name / f"{suffix}.{suffix}").write_bytes(picture(2 * number + (name == "dog"), form=form))
    build_shards("folders", source, str(out), SourceConfig(), SMALL, silent)
    assert verify(out, decode=True, progress=silent).findings.is_empty()
    rejected = pl.read_parquet(out / REJECTED)
    assert sorted(rejected["file"]) == sorted(
        f"{name}/{suffix}.{suffix}" for name in ("cat", "dog") for suffix in _OTHERS
    )
    assert rejected["detail"].str.contains("convert the image to one of them").all()

    dataset = hgld.open_dataset(out)
    assert len(dataset) == 2 * len(IMAGE_SUFFIXES)
    for image in range(len(dataset)):
        assert np.asarray(dataset.image(image)).std() > 0
