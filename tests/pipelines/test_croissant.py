"""mlcroissant reads ``croissant.json``, and Hugging Face ``datasets`` reads the shards."""

import hashlib
import json
import re
from dataclasses import replace
from io import BytesIO

import mlcroissant
import polars as pl
import pytest
from PIL import Image

from hgld import open_dataset
from hgld.data import format as files
from hgld.data.format import IMAGE_SUFFIXES
from hgld.pipelines.shards.cards import croissant, load_card, remake_card
from tests.interpreter import python
from tests.pipelines.tiny_shards import LEVELS, TinyShards, index_of

# mlcroissant calls deprecated functions of rdflib
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


_PICTURES = """
import hashlib, json, sys
import mlcroissant
rows = [
    [r["images/key"].decode(), r["images/split"].decode(), [int(r[f"images/{level}"]) for level in sys.argv[2:]],
     hashlib.sha256(r["images/image"].convert("RGB").tobytes()).hexdigest()]
    for r in mlcroissant.Dataset(sys.argv[1]).records("images")
]
print(json.dumps(rows))
"""


def stored(part, item):
    """Return the pixels of an item's image as stored in its file, without applying the EXIF orientation."""
    return Image.open(BytesIO(part.encoded([item])[0].data)).convert("RGB").tobytes()


@pytest.mark.slow
def test_mlcroissant_yields_images_with_their_labels(tiny, tmp_path):
    # a new process, because mlcroissant reads CROISSANT_CACHE when it is imported
    done = python("-c", _PICTURES, tiny / files.CROISSANT, *LEVELS, CROISSANT_CACHE=str(tmp_path / "cache"))
    expected = [
        [key, split, part.labels[i].tolist(), hashlib.sha256(stored(part, i)).hexdigest()]
        for split in ("train", "test")
        for part in [open_dataset(tiny, split)]
        for i, key in enumerate(part.keys)
    ]
    assert sorted(json.loads(done.stdout)) == sorted(expected)


def test_croissant_describes_every_file_and_image_format(tiny):
    manifest = files.Manifest.from_json((tiny / files.MANIFEST).read_bytes())
    described = json.loads((tiny / files.CROISSANT).read_text())
    stated = {part["@id"]: part["sha256"] for part in described["distribution"] if part["@type"] == "cr:FileObject"}
    known = {name: manifest.files[name]["sha256"] for name in (files.INDEX, files.HIERARCHY)}
    assert stated == known | {shard.name: shard.sha256 for shard in manifest.shards}
    (pictures,) = [part for part in described["distribution"] if part["@type"] == "cr:FileSet"]
    (images,) = [part for part in described["recordSet"] if part["@id"] == "images"]
    without_suffix = images["field"][0]["source"]["transform"]["regex"]
    for suffix in IMAGE_SUFFIXES:
        assert f"*.{suffix}" in pictures["includes"]
        assert re.findall(without_suffix, f"a/1.{suffix}") == ["a/1"]


def test_mlcroissant_reads_classes_and_splits_and_accepts_unusual_names(tmp_path):
    root = TinyShards(boxes=True).write(tmp_path / "tiny")
    dataset = mlcroissant.Dataset(root / files.CROISSANT)
    assert not dataset.metadata.ctx.issues.errors
    assert [record["classes/name"] for record in dataset.records("classes")][-2:] == [b"cat", b"dog"]
    assert [record["splits/name"] for record in dataset.records("splits")] == ["test", "train"]
    manifest = files.Manifest.from_json((root / files.MANIFEST).read_bytes())
    odd = replace(manifest, name="Größe <b>&", levels=("é level", "level_0"))
    (root / files.CROISSANT).write_text(json.dumps(croissant(odd, load_card("sop"))))
    dataset = mlcroissant.Dataset(root / files.CROISSANT)
    assert (dataset.metadata.ctx.issues.errors, dataset.metadata.name) == (set(), "Gr-e-b-")


_LOAD = """
import json, sys
from datasets import load_dataset
loaded = load_dataset(sys.argv[1], cache_dir=sys.argv[2])
rows = {split: [[r["__key__"], r["json"]["labels"], r["json"]["split"], list(r["jpg"].size)] for r in part]
        for split, part in loaded.items()}
print(json.dumps(rows))
"""


@pytest.mark.slow
def test_hugging_face_datasets_loads_the_folder(tmp_path):
    # Datasets requires equal suffixes in the first five items of a shard.
    root = TinyShards(with_png=False).write(tmp_path / "tiny")
    index = index_of(root)
    remake_card(root)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    # a new process, because datasets leaves threads and open files behind
    done = python("-c", _LOAD, root, tmp_path / "cache", **offline)
    rows = json.loads(done.stdout.splitlines()[-1])
    upright = (
        pl.when(orientation=6).then(pl.concat_list("height", "width")).otherwise(pl.concat_list("width", "height"))
    )
    expected = index.select("key", pl.concat_list(LEVELS), "split", upright.alias("size"))
    assert rows.keys() == {"train", "test"}
    for split, found in rows.items():
        assert [tuple(row) for row in found] == expected.filter(split=split).rows()
