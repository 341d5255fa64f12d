"""Folders in the user's cache are found by their key facts, never read if damaged, and limited in total size."""

import os

import pytest

from hgld.user_cache import KeptFolder

FACTS = {"weights": "abc", "size": 3}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def keep(facts, text="content"):
    kept = KeptFolder("things", facts)
    kept.write(lambda folder: (folder / "a.txt").write_text(text))
    return kept


def read(kept):
    return kept.read(lambda folder: (folder / "a.txt").read_text())


def test_cached_folder_is_found_only_with_equal_facts():
    assert read(KeptFolder("things", FACTS)) is None
    kept = keep(FACTS)
    assert read(KeptFolder("things", {"size": 3, "weights": "abc"})) == "content"
    assert read(KeptFolder("things", FACTS | {"size": 4})) is None
    assert read(KeptFolder("others", FACTS)) is None
    keep(FACTS, "new")
    assert read(kept) == "new"


@pytest.mark.parametrize("name", ["a.txt", "made-from.json"])
@pytest.mark.parametrize("data", [None, b"", b"{", b"another"])
def test_a_damaged_folder_is_not_read(name, data):
    kept = keep(FACTS)
    file = kept.folder / name
    file.unlink() if data is None else file.write_bytes(data)
    assert read(kept) is None
    assert read(keep(FACTS)) == "content"


def test_least_recently_read_folders_are_removed_beyond_the_limit(monkeypatch):
    kept = [keep({"number": number}, "x" * 1000) for number in range(4)]
    for age, one in enumerate(kept):
        os.utime(one.folder / "made-from.json", ns=(age * 10**9, age * 10**9))
    assert read(kept[0])  # the read makes this folder the most recently used
    monkeypatch.setattr("hgld.user_cache.MOST_BYTES", 4000)
    newest = keep({"number": 4}, "x" * 1000)
    assert [one.folder.exists() for one in (*kept, newest)] == [True, False, False, True, True]
    keep({"number": 5}, "x" * 9000)
    assert len(list(newest.folder.parent.iterdir())) == 1  # the newest folder stays even if it exceeds the limit
