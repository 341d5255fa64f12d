"""The adapters of Holidays and UKBench, whose releases have names and no lists."""

from pathlib import Path

import pytest

from hgld.errors import ConfigError, InputError
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.catalog import Catalog
from hgld.pipelines.shards.config import SourceConfig
from tests.fake_releases import holidays, ukbench
from tests.fake_releases.__main__ import maker

FOLDERS = {"holidays": "jpg", "ukbench": "full"}


def read(name: str, source: Path, **options) -> Catalog:
    return read_release(name, source, SourceConfig(**options))


@pytest.mark.parametrize("name", FOLDERS)
def test_the_folder_of_images_is_found_from_within_and_from_above(name, tmp_path):
    maker(name)(tmp_path, 0)
    above, within = read(name, tmp_path), read(name, tmp_path / FOLDERS[name])
    assert all((above.root / file).is_file() for file in above.items["file"])
    assert all((within.root / file).is_file() for file in within.items["file"])
    assert above.items.drop("file").equals(within.items.drop("file"))
    assert above.items["split"].unique().to_list() == ["test"]


@pytest.mark.parametrize("name", FOLDERS)
def test_other_files_are_kept_aside_and_empty_folders_refused(name, tmp_path):
    with pytest.raises(InputError, match=rf"no image named like .*hgld datasets {name}"):
        read(name, tmp_path)
    maker(name)(tmp_path, 0)
    folder = FOLDERS[name]
    (tmp_path / folder / "1000000.jpg").touch()
    (tmp_path / folder / "readme.txt").touch()
    catalog = read(name, tmp_path)
    assert catalog.dropped is not None
    assert catalog.dropped["file"].to_list() == [f"{folder}/1000000.jpg", f"{folder}/readme.txt"]
    with pytest.raises(ConfigError, match="does not take --images"):
        read(name, tmp_path, images=tmp_path)


def test_the_first_image_of_a_group_of_holidays_is_its_query(tmp_path):
    holidays.make(tmp_path)
    catalog = read("holidays", tmp_path)
    assert catalog.lists is not None
    assert catalog.lists.rows() == [("queries", key) for key in ("100000", "100100", "125000", "149900")]
    sizes = {row["instance"]: row["len"] for row in catalog.items.group_by("instance").len().iter_rows(named=True)}
    assert sizes == {str(group): size for group, size in holidays.GROUPS.items()}
    (tmp_path / "jpg" / "125000.jpg").unlink()
    with pytest.raises(InputError, match=r"1 groups have no query, the first 1250: 125000\.jpg is missing"):
        read("holidays", tmp_path)


def test_four_consecutive_images_of_ukbench_are_an_object(tmp_path):
    ukbench.make(tmp_path)
    assert read("ukbench", tmp_path).items["instance"].to_list() == ["0000"] * 4 + ["0001"] * 4 + ["0002"] * 4
    (tmp_path / "full" / "ukbench00006.jpg").unlink()
    with pytest.raises(InputError, match=r"1 objects have not 4 images, the first 3; expected ukbench00004\.jpg to"):
        read("ukbench", tmp_path)
