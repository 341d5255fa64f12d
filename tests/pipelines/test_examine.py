import errno
import hashlib
import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
import pytest
import simplejpeg
from PIL import Image, ImageOps

from hgld.data.images import read_header
from hgld.errors import ImageError, InputError
from hgld.pipelines.shards import examine as examine_stage
from hgld.pipelines.shards.catalog import Container
from hgld.pipelines.shards.config import ShardConfig
from hgld.pipelines.shards.examine import EXAMINED, ExamineUnit, examine
from hgld.pipelines.shards.reading import checked_image, decodes_strictly
from hgld.pipelines.stage import read_facts
from tests.fake_releases.pictures import jpeg, png
from tests.pipelines.tiny_shards import write_tar
from tests.rows import each_row


def rng():
    return np.random.default_rng(0)


def unit_of(tmp_path: Path, files: list[str], source: Path, **given: Any) -> ExamineUnit:
    catalog = tmp_path / "work" / "catalog.parquet"
    catalog.parent.mkdir(exist_ok=True)
    pl.DataFrame({"file": sorted(files)}).write_parquet(catalog)
    unit = ExamineUnit(
        name="unit",
        key="key",
        signature="",
        catalog=catalog,
        start=0,
        stop=len(files),
        source=source,
        container=None,
        spooled=False,
        config=ShardConfig(),
        record=tmp_path / "work" / "unit.parquet",
    )
    return replace(unit, **given)


def rows_of(unit: ExamineUnit) -> list[dict]:
    assert examine(unit) is None
    table = pl.read_parquet(unit.record)
    assert table.schema == EXAMINED
    return table.to_dicts()


def resized(data: bytes, side: int, quality: int = 90) -> tuple[bytes, Any]:
    return checked_image(data, resize=side, quality=quality)[:2]


def saved(image, kind, **given):
    file = io.BytesIO()
    image.save(file, kind, **given)
    return file.getvalue()


def image_of(size: tuple[int, int], kind: str = "JPEG", mode: str = "RGB", **given: Any) -> bytes:
    pixels = rng().integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels).convert(mode), kind, **given)


SOUND = {
    "a.jpg": (jpeg(rng()), "jpg", 40, 32, 1),
    "b.jpg": (jpeg(rng(), orientation=6), "jpg", 40, 32, 6),
    "c.jpg": (png(rng()), "png", 40, 32, 1),  # the stored suffix follows the bytes, not the file name
    "d.gif": (image_of((9, 7), "GIF"), "gif", 9, 7, 1),
    "e.webp": (image_of((9, 7), "WEBP"), "webp", 9, 7, 1),
    "g.jpg": (jpeg(rng(), orientation=200), "jpg", 40, 32, 1),  # an invalid orientation counts as upright
    "h.jpg": (jpeg(rng()) + b"behind the end", "jpg", 40, 32, 1),
}


def test_examining_valid_images_records_size_suffix_and_checksum(tmp_path):
    for name, (data, *_) in SOUND.items():
        (tmp_path / name).write_bytes(data)
    rows = rows_of(unit_of(tmp_path, list(SOUND), tmp_path))
    for row, (data, suffix, width, height, orientation) in zip(rows, SOUND.values(), strict=True):
        assert row["reason"] is None
        assert (row["suffix"], row["width"], row["height"], row["orientation"]) == (suffix, width, height, orientation)
        assert (row["size"], row["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        assert row["offset"] is None


UNSOUND = {
    "empty.jpg": (b"", "empty"),
    "text.jpg": (b"<html>404</html>", "undecodable"),
    "cut.jpg": (jpeg(rng(), 90, 90)[:-40], "truncated"),
    "headless.jpg": (jpeg(rng())[:60], "undecodable"),
    "cut.png": (image_of((60, 60), "PNG")[:-2000], "truncated"),
    "large.jpg": (bytes((1 << 20) + 1), "too-large"),
    "scan.bmp": (image_of((9, 7), "BMP"), "undecodable"),
}


@each_row("name", UNSOUND)
def test_unusable_images_are_excluded_with_a_reason(tmp_path, monkeypatch, name):
    monkeypatch.setattr(examine_stage, "MAX_IMAGE_BYTES", 1 << 20)
    data, reason = UNSOUND[name]
    (tmp_path / name).write_bytes(data)
    (row,) = rows_of(unit_of(tmp_path, [name], tmp_path))
    assert row["reason"] == reason
    assert row["detail"]
    assert "0x" not in row["detail"]
    assert row["sha256"] is None


def test_links_and_paths_that_leave_the_folder_are_not_followed(tmp_path):
    source = tmp_path / "source"
    (source / "folder.jpg").mkdir(parents=True)
    (tmp_path / "secret.jpg").write_bytes(jpeg(rng()))
    (source / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (source / "away").symlink_to(tmp_path)
    (source / "inside.jpg").write_bytes(jpeg(rng()))
    (source / "sound.jpg").symlink_to("inside.jpg")
    os.mkfifo(source / "pipe.jpg")
    files = ["link.jpg", "away/secret.jpg", "../secret.jpg", "folder.jpg", "pipe.jpg", "sound.jpg", "gone.jpg"]
    files += ["inside.jpg/below.jpg", str(tmp_path / "secret.jpg")]
    rows = rows_of(unit_of(tmp_path, files, source))
    found = {file: row["reason"] for file, row in zip(sorted(files), rows, strict=True)}
    assert found.pop("sound.jpg") is None
    assert found.pop("gone.jpg") == "missing"
    assert found.pop("inside.jpg/below.jpg") == "unreadable"
    assert set(found.values()) == {"unsafe-path"}


@each_row(
    ("patched", "error", "expected", "said"),
    [
        (
            "os.read",
            OSError(errno.EIO, "disk gone"),
            InputError,
            r"a\.png: cannot be read \(disk gone\)",
        ),
        ("PIL.PngImagePlugin.PngImageFile.load", MemoryError("none left"), MemoryError, "none left"),
    ],
)
def test_disk_error_or_lack_of_memory_stops_the_build_and_rejects_no_image(
    tmp_path, monkeypatch, patched, error, expected, said
):
    def fail(*_):
        raise error

    (tmp_path / "a.png").write_bytes(png(rng()))
    unit = unit_of(tmp_path, ["a.png"], tmp_path)
    monkeypatch.setattr(patched, fail)
    with pytest.raises(expected, match=said):
        examine(unit)
    assert not unit.record.exists()


@each_row("spooled", [False, True])
def test_tar_members_are_found_by_their_file_name_without_suffix(tmp_path, spooled):
    images = {f"x/{name}": data for name, (data, *_) in SOUND.items()}
    path = write_tar(tmp_path / "images.tar", {"readme.txt": b"no image", **images, "y/a.jpg": png(rng())}.items())
    # two members have the stem a, and the first is used; no member has the stem z
    files = [*(f"set/{name[0]}" for name in SOUND), "set/z"]
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    unit = unit_of(tmp_path, files, path, container=Container(path, md5, "set"), spooled=spooled)
    rows = rows_of(unit)
    assert [row["sha256"] for row in rows] == [hashlib.sha256(data).hexdigest() for data in images.values()]
    kept = unit.record.with_suffix(".spool") if spooled else path
    stored = kept.read_bytes()
    assert [stored[row["offset"] : row["offset"] + row["size"]] for row in rows] == list(images.values())
    facts = read_facts(unit.record, "key")
    assert facts is not None
    assert (facts["md5"], facts["bytes"]) == (md5, path.stat().st_size)


def test_hostile_tar_members_are_reported_and_not_followed(tmp_path, monkeypatch):
    monkeypatch.setattr(examine_stage, "MAX_IMAGE_BYTES", 1 << 20)
    path = tmp_path / "images.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("../../a.jpg", tarfile.REGTYPE), ("b.jpg", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        member = tarfile.TarInfo("c.jpg")
        member.size = (1 << 20) + 1
        tar.addfile(member, io.BytesIO(bytes((1 << 20) + 1)))
    rows = rows_of(unit_of(tmp_path, [f"set/{name}" for name in "abc"], path, container=Container(path, None, "set")))
    assert [row["reason"] for row in rows] == ["unsafe-path"] * 2 + ["too-large"]


@each_row("fault", ["md5", "cut"])
def test_damaged_tar_is_refused_and_no_record_is_written(tmp_path, fault):
    path = write_tar(tmp_path / "images.tar", [("a.jpg", jpeg(rng())), ("b.jpg", jpeg(rng()))])
    md5 = "0" * 32 if fault == "md5" else None
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:1_800])
    unit = unit_of(tmp_path, ["set/a", "set/b"], path, container=Container(path, md5, "set"), spooled=True)
    refused = examine(unit)
    assert refused is not None
    assert str(path) in refused
    assert "etch" in refused  # the message contains "Fetch" or "fetch"
    # neither a record nor a spool file was written
    assert [path.name for path in unit.record.parent.iterdir()] == ["catalog.parquet"]


@each_row("orientation", range(1, 9))
def test_resized_images_are_upright(orientation):
    data = image_of((120, 80), exif=jpeg_exif(orientation), quality=95)
    made, facts = resized(data, 20, 95)
    assert (facts.width, facts.height) == ((30, 20) if orientation < 5 else (20, 30))
    assert read_header(made) == facts
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB"))
    expected = np.asarray(upright.resize((facts.width, facts.height), Image.Resampling.BOX), dtype=float)
    assert np.abs(np.asarray(Image.open(io.BytesIO(made)), dtype=float) - expected).mean() < 12


def jpeg_exif(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def test_small_upright_images_keep_their_bytes():
    small = jpeg(rng())
    assert resized(small, 32)[0] == small
    turned = jpeg(rng(), orientation=6)
    made, facts = resized(turned, 100)
    assert made != turned
    assert (facts.width, facts.height, facts.orientation) == (32, 40, 1)


@each_row(("kind", "mode"), [("PNG", "RGB"), ("WEBP", "RGB"), ("GIF", "P"), ("JPEG", "CMYK"), ("JPEG", "L")])
def test_resized_images_of_any_format_and_mode_are_rgb_jpegs(kind, mode):
    made, facts = resized(image_of((50, 40), kind, mode), 20)
    assert (facts.format, facts.width, facts.height) == ("JPEG", 25, 20)
    assert read_header(made) == facts
    assert Image.open(io.BytesIO(made)).mode == "RGB"


def test_16_bit_grey_values_are_scaled_and_not_clipped():
    grey = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (64, 1))
    made, _ = resized(saved(Image.fromarray(grey.astype(np.uint16) * 257), "PNG"), 32, 95)
    expected = grey.reshape(32, 2, 32, 2).mean(axis=(1, 3))
    assert np.abs(np.asarray(Image.open(io.BytesIO(made)).convert("L"), dtype=float) - expected).mean() < 3


def test_boxes_are_clipped_and_rounded_outwards_after_scaling():
    data = image_of((120, 80), exif=jpeg_exif(6))  # EXIF orientation 6: the upright image is 80 x 120
    assert checked_image(data, (-3, 5, 999, 119))[2] == (0, 5, 80, 119)
    assert checked_image(data, (5, 5, 79, 119), resize=20)[2] == (1, 1, 20, 30)
    with pytest.raises(ImageError, match="leaves nothing"):
        checked_image(data, (80, 0, 90, 10))


# -- checks that decode ---------------------------------------------------------------------------------------------


def _grainy(**options):
    """Return a JPEG of smooth patches with noise, similar to a photograph."""
    random = rng()
    coarse = random.integers(0, 256, (6, 8, 3)).astype(np.float32)
    patches = cv2.resize(coarse, (160, 120), interpolation=cv2.INTER_CUBIC)
    pixels = (patches + random.normal(0, 9, patches.shape)).clip(0, 255).astype(np.uint8)
    return saved(Image.fromarray(pixels).convert(options.pop("mode", "RGB")), "JPEG", **options)


def _damaged(data, random):
    """Return the data with a flipped bit, a changed byte, a missing part, or a truncated end."""
    at = int(random.integers(2, len(data)))
    kind = int(random.integers(4))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << int(random.integers(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + bytes([int(random.integers(256))]) + data[at + 1 :]
    return data[:at] + data[at + int(random.integers(1, 200)) :] if kind == 2 else data[:at]


@each_row(
    "options",
    [
        {"quality": 90},
        {"quality": 92, "subsampling": 0},
        {"quality": 90, "progressive": True},
        {"quality": 85, "restart_marker_blocks": 5},
        {"quality": 90, "mode": "L"},
    ],
)
def test_decoding_at_one_eighth_size_finds_the_same_damage_as_full_decoding(options):
    """Strict decoding of every pixel is the reference for which damaged images to refuse."""
    data, random = _grainy(**options), np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        damaged = _damaged(data, random)
        try:
            simplejpeg.decode_jpeg(damaged)
            sound = True
        except ValueError:
            sound = False
        assert decodes_strictly(damaged) == sound
        refused += not sound
    assert 38 < refused < 146
