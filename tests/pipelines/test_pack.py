import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import InputError
from hgld.pipelines.shards import pack as pack_module
from hgld.pipelines.shards.examine import LOOSE
from hgld.pipelines.shards.pack import PackUnit, TarWriter, pack
from hgld.pipelines.stage import read_facts

LEVELS = ("fine", "top")


def content_of(tar: tarfile.TarFile, member: tarfile.TarInfo | str) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


@given(
    st.lists(
        st.tuples(st.from_regex(r"[a-z]{1,120}", fullmatch=True), st.binary(max_size=1500), st.binary(max_size=600)),
        max_size=5,
        unique_by=lambda item: item[0],
    )
)
def test_written_tar_is_read_unchanged_by_the_tarfile_module(items):
    file = io.BytesIO()
    writer = TarWriter(file)
    offsets = [writer.add(key, "jpg", image, json) for key, image, json in items]
    sha256 = writer.finish()
    data = file.getvalue()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (writer.bytes, sha256)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = [(m.name, content_of(tar, m), m.offset_data) for m in tar]
    assert [name for name, *_ in found] == [f"{key}.{suffix}" for key, *_ in items for suffix in ("jpg", "json")]
    assert [content for _, content, _ in found] == [content for item in items for content in item[1:]]
    assert [offset for *_, offset in found[::2]] == offsets


IMAGES = [bytes([i]) * (700 + 300 * i) for i in range(5)]


def unit_of(tmp_path: Path) -> PackUnit:
    """Return a unit of five items: two loose files, two tar members and one spooled image."""
    root = tmp_path / "source"
    root.mkdir()
    (root / "0.jpg").write_bytes(IMAGES[0])
    (root / "1.jpg").write_bytes(IMAGES[1])
    (tmp_path / "a.tar").write_bytes(b"x" * 100 + IMAGES[2] + IMAGES[3])
    (tmp_path / "a.spool").write_bytes(IMAGES[4])
    count = len(IMAGES)
    plan = pl.DataFrame(
        {
            "key": [f"k/{i}" for i in range(count)],
            "split": ["train"] * count,
            "file": ["0.jpg", "1.jpg", "set/2", "set/3", "set/4"],
            "origin": pl.Series([LOOSE, LOOSE, 0, 0, 1], dtype=pl.Int32),
            "source_offset": [None, None, 100, 100 + len(IMAGES[2]), 0],
            "size": [len(image) for image in IMAGES],
            "suffix": ["jpg"] * count,
            "width": pl.Series([4] * count, dtype=pl.Int32),
            "height": pl.Series([3] * count, dtype=pl.Int32),
            "orientation": pl.Series([1] * count, dtype=pl.Int8),
            "fine": pl.Series([0, 0, 1, 1, -1], dtype=pl.Int32),
            "top": pl.Series([0, 0, 0, 0, -1], dtype=pl.Int32),
            "shard": ["train-000000.tar"] * count,
            "sha256": [hashlib.sha256(image).hexdigest() for image in IMAGES],
            "duplicate_of": pl.Series([None] * count, dtype=pl.String),
            "class_run": pl.Series([0, 0, 1, 1, 2], dtype=pl.Int32),
            "name/fine": ["a", "a", "b", "b", None],
            "name/top": ["t", "t", "t", "t", None],
        }
    )
    plan.write_parquet(tmp_path / "plan.parquet")
    return PackUnit(
        name="train-000000.tar",
        key="key",
        levels=LEVELS,
        plan=tmp_path / "plan.parquet",
        root=root,
        origins=(tmp_path / "a.tar", tmp_path / "a.spool"),
        out=tmp_path / "out",
        record=tmp_path / "packed" / "train-000000.tar.parquet",
    )


@pytest.mark.parametrize("where", ["1.jpg", "a.tar", "a.spool"])
@pytest.mark.parametrize("how", ["changed", "shorter", "gone"])
def test_images_changed_since_examination_stop_packing(tmp_path, where, how):
    unit = unit_of(tmp_path)
    path = tmp_path / ("source" if where == "1.jpg" else ".") / where
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\xff" if how == "changed" else data[:-1])
    if how == "gone":
        path.unlink()
    with pytest.raises(InputError, match=where):
        pack(unit)
    assert not unit.record.exists()
    assert list((tmp_path / "out").iterdir()) == []


def test_record_of_a_different_plan_is_removed_before_packing(tmp_path, monkeypatch):
    """If packing stops before its record is written, the first plan must not accept the shard of the second plan."""
    first = unit_of(tmp_path)
    pack(first)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_module.UnitRecord, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        pack(replace(first, key="another"))
    assert read_facts(first.record, first.key) is None
