import hashlib
import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.errors import InputError
from hgld.pipelines.shards.pack import TarWriter
from tests.pipelines.tiny_shards import findings
from tests.pipelines.toy_release import ToyRelease, build
from tests.rows import each_row


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


WHERE = {"loose": "0/0.jpg", "tar": "set_1.tar", "spool": "set-000001.spool"}  # file with the bytes of an image


@each_row(
    ("kind", "how"),
    [("loose", "changed"), ("loose", "gone"), ("tar", "changed"), ("tar", "shorter"), ("spool", "gone")],
)
def test_images_changed_since_examination_stop_packing(tmp_path, monkeypatch, kind, how):
    def damage(out, needed):
        """Change the file between the examination and the packing."""
        (path,) = tmp_path.rglob(WHERE[kind])
        data = path.read_bytes()
        path.write_bytes({"changed": data.replace(b"\xff\xd8\xff", b"\xff\xd8\0"), "shorter": data[:600]}.get(how, b""))
        if how == "gone":
            path.unlink()

    release = ToyRelease.make()
    catalog = release.catalog(release.write(tmp_path / "source"))
    if kind != "loose":
        catalog = release.tar_catalog(tmp_path, release.write_tars(tmp_path / "tars"))
    monkeypatch.setattr("hgld.pipelines.shards.build.check_space", damage)
    with pytest.raises(InputError, match=WHERE[kind]):
        build(catalog, tmp_path / "out", shard_items=100, keep_examined=kind == "spool")
    assert not list((tmp_path / "out/.build/packed").glob("train*"))
    assert not list((tmp_path / "out").glob("train*"))


def test_record_of_a_different_plan_is_removed_before_packing(tmp_path, monkeypatch):
    """If packing stops before its record is written, the first plan must not accept the shard of the second plan.

    The image changes in between, so it is examined again; otherwise packing would report it as changed.
    """

    def stop(*_):
        raise KeyboardInterrupt

    release = ToyRelease.make()
    catalog = release.catalog(release.write(tmp_path / "source"))
    monkeypatch.setattr("hgld.pipelines.shards.build.finish", stop)
    with pytest.raises(KeyboardInterrupt):
        build(catalog, tmp_path / "out", shard_items=100)
    image = tmp_path / "source/0/0.jpg"
    image.write_bytes(release.images["0/1.jpg"])
    monkeypatch.setattr("hgld.pipelines.shards.pack.UnitRecord", stop)
    with pytest.raises(KeyboardInterrupt):
        build(catalog, tmp_path / "out", shard_items=100)
    monkeypatch.undo()
    image.write_bytes(release.images["0/0.jpg"])
    build(catalog, tmp_path / "out", shard_items=100)
    assert findings(tmp_path / "out").is_empty()
