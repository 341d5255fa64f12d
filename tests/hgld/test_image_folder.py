"""Plain folders of images, image files and images in memory can be opened like datasets."""

import os
import pickle

import numpy as np
import pytest
import torch

import hgld
from hgld.data.dataset import dataset_of_images
from hgld.errors import InputError
from tests.fake_releases.pictures import jpeg


@pytest.fixture
def make(tmp_path):
    """Return a function that writes images, or texts for other suffixes, into a folder and opens it."""
    rng = np.random.default_rng(0)

    def write(*paths, split=None):
        for path in paths:
            file = tmp_path / "photos" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg(rng) if path.lower().endswith((".jpg", ".jpeg")) else b"text")
        return hgld.open_dataset(tmp_path / "photos", split)

    return write


def classes(dataset):
    """Return class names per item, finest first."""
    return list(zip(*(dataset[level] for level in dataset.levels), strict=True))


def test_folder_names_become_class_names(make):
    found = make("Äpfel rot/1 a.jpg", "Äpfel rot/b.JPEG", "b[1]/c.jpg", "b[1]/notes.txt", "b[1]/.hidden.jpg")
    assert found.keys.to_list() == ["b[1]/c.jpg", "Äpfel rot/1 a.jpg", "Äpfel rot/b.JPEG"]
    assert classes(found) == [("b[1]",), ("Äpfel rot",), ("Äpfel rot",)]
    assert (found.levels, found.manifest.name, found.split) == (("level0",), "photos", None)
    assert found.image(1).size == tuple(found.sizes[1])


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a.jpg", "b.jpg"], [(None,), (None,)]),
        (["top.jpg", *(f"x/{n}.jpg" for n in range(30)), "x/y/a.jpg"], [(None,), *[("x",)] * 31]),
        (["k/x/a.jpg", "k/y/b.jpg", "k/c.jpg"], [(None, "k"), ("x", "k"), ("y", "k")]),
        (["k/x/a.jpg", "l/x/b.jpg"], [("k/x", "k"), ("l/x", "l")]),
        (["train/x/a.jpg", "test/y/b.jpg"], [("y",), ("x",)]),
    ],
)
def test_number_of_levels_is_the_depth_that_five_per_cent_of_the_images_reach(make, paths, expected):
    assert classes(make(*paths)) == expected


def test_folders_named_like_splits_are_splits_that_are_selected_pickled_and_loaded_in_batches(make):
    found = make("train/x/a.jpg", "test/x/b.jpg", "test/y/c.jpg", split="test")
    assert found.keys.to_list() == ["test/x/b.jpg", "test/y/c.jpg"]
    part = pickle.loads(pickle.dumps(found.select([1, 0])))
    assert part.frame["key"].to_list() == part.keys.to_list() == ["test/y/c.jpg", "test/x/b.jpg"]
    loader = hgld.data.Loader(found, hgld.samplers.PKSampler(found, p=2, k=1), hgld.data.TestView(16, 16))
    assert next(iter(loader)).images.shape == (2, 3, 16, 16)
    with pytest.raises(InputError, match=r"no split 'val'; it has test, train\. .*hgld build-shards folders"):
        make(split="val")


def test_decoding_a_damaged_or_changed_file_raises_an_error_with_its_path(make, tmp_path):
    found = make("x/a.jpg", "x/b.jpg")
    (tmp_path / "photos/x/c.jpg").write_bytes(b"\xff\xd8\xff half")
    with pytest.raises(InputError, match=r"photos/x/c\.jpg.*cannot be decoded"):
        make().image(2)
    (tmp_path / "photos/x/b.jpg").write_bytes(b"shorter")
    with pytest.raises(InputError, match=r"x/b\.jpg: its size changed since it was listed"):
        found.image(1)


def test_headers_are_read_once_and_again_when_a_file_changes(make, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = make("x/a.jpg").sizes.tolist()
    monkeypatch.setattr("hgld.data.image_folder.read_header", None)
    assert make().sizes.tolist() == first
    os.utime(tmp_path / "photos/x/a.jpg", ns=(0, 0))
    with pytest.raises(TypeError):
        make()


def test_error_of_a_folder_without_images_suggests_build_shards_and_index(make, tmp_path):
    with pytest.raises(
        InputError, match=r"no dataset\.json .so this is not a dataset. and no image .*hgld build-shards.*hgld index"
    ):
        make("notes.txt")


def test_images_in_memory_and_files_keep_their_order(tmp_path):
    rng = np.random.default_rng(1)
    data = [jpeg(rng), jpeg(rng, orientation=6)]
    for number, content in enumerate(data):
        (tmp_path / f"{number}.jpg").write_bytes(content)
    files = dataset_of_images([tmp_path / "1.jpg", tmp_path / "0.jpg", tmp_path / "1.jpg"])
    memory = dataset_of_images([data[1], data[0], data[1]])
    for one in (files, memory):
        assert one.read_many([0, 1, 2]) == [data[1], data[0], data[1]]
        assert torch.equal(one.labels, torch.full((3, 1), -1))
    assert files.sizes.tolist() == memory.sizes.tolist()
    with pytest.raises(InputError, match="there are no images"):
        dataset_of_images([])
