import hashlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hgld import open_dataset, stream
from hgld.data.image_cache import ImageCache
from hgld.errors import ConfigError, StorageError
from tests.hgld.range_server import serve
from tests.hgld.small_dataset import items_of_classes, write_dataset

SIZE = 20_000


def images_of(seed: int, count: int) -> dict[bytes, bytes]:
    rng = np.random.default_rng(seed)
    return {hashlib.sha256(data).digest(): data for data in (rng.bytes(SIZE) for _ in range(count))}


@pytest.fixture(scope="module")
def folder(module_path):
    write_dataset(module_path, items_of_classes((4, 4, 4, 4)))
    return module_path


# -- the file ----------------------------------------------------------------------------------------------------------


def test_full_cache_keeps_its_images_and_its_size(tmp_path):
    cache = ImageCache(tmp_path, 10 * SIZE, "a")
    first = images_of(0, 5)
    cache.add(first)
    for seed in range(1, 20):
        cache.add(images_of(seed, 3))
    assert cache.read(first) == first
    assert 5 * SIZE < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10 * SIZE


def test_full_cache_removes_images_of_other_datasets(tmp_path):
    old, new = images_of(0, 8), images_of(1, 8)
    ImageCache(tmp_path, 10 * SIZE, "old").add(old)
    cache = ImageCache(tmp_path, 10 * SIZE, "new")
    cache.add(new)
    assert cache.read(new) == new
    assert not cache.read(old)


def test_changed_bytes_are_not_returned_and_are_replaced(tmp_path):
    cache, images = ImageCache(tmp_path, 10**7, "a"), images_of(0, 3)
    cache.add(images)
    with sqlite3.connect(tmp_path / "images.sqlite") as database:
        database.execute("UPDATE images SET data = ? WHERE rowid = 2", (b"other",))
    assert len(cache.read(images)) == 2
    cache.add(images)
    assert cache.read(images) == images


def test_threads_share_a_cache(tmp_path):
    parts = [images_of(seed, 5) for seed in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda part: ImageCache(tmp_path, 10**8, "a").add(part), parts))
        assert list(pool.map(lambda part: ImageCache(tmp_path, 10**8, "a").read(part), parts)) == parts


def test_unusable_caches_raise_an_error(tmp_path):
    (tmp_path / "images.sqlite").write_bytes(b"no database " * 1000)
    with pytest.raises(StorageError, match=r"cannot use the cache .*not a database.*Remove .*images.sqlite, or choose"):
        ImageCache(tmp_path, 10**7, "a")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cannot use the cache .*file"):
        ImageCache(tmp_path / "file", 10**7, "a")


# -- datasets ----------------------------------------------------------------------------------------------------------


def test_later_epochs_and_runs_read_images_from_the_cache(folder, tmp_path):
    options = {"cache": tmp_path / "cache", "cache_size": 0.1}
    with serve(folder) as server:
        for requested in (True, False):
            server.requests.clear()
            batches = stream(server.url, 2, 2, num_streams=1, storage_options=options)
            expected = list(stream(folder, 2, 2, num_streams=1))
            assert [batch.images.tolist() for batch in batches] == [batch.images.tolist() for batch in expected]
            assert (".tar" in str(server.requests)) == requested
        again = open_dataset(server.url, "train", storage_options=options)
        assert again.read_many([3, 1, 3]) == open_dataset(folder, "train").read_many([3, 1, 3])
        assert ".tar" not in str(server.requests)
        with pytest.raises(ConfigError, match="needs --verify-reads"):  # the cache needs the hashes of images
            open_dataset(server.url, "train", storage_options=options, verify_reads=False)


def test_datasets_on_a_disk_are_not_cached(folder, tmp_path):
    open_dataset(folder, storage_options={"cache": tmp_path / "cache"}).read(0)
    assert not (tmp_path / "cache").exists()
