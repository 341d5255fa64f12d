"""The synthetic release on disk, with GLDv2's layout and file names: tars, MD5 sums, and lists.

The release is written tar by tar, so that memory does not grow with the images. A tar with an MD5 sum is complete and
kept.
"""

import csv
import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np

from hgld.data.tar import END_OF_ARCHIVE, member_header, padding
from hgld.files import write_atomic
from hgld.pipelines.shards.sources.gldv2 import TARS, checksum_name, tar_name
from rehearsed.pictures import Pictures, jpeg
from rehearsed.world import IMAGES, LEAST_SCORED, LEVELS, PUBLIC, SCORED, SETS, World

COMMONS = "http://commons.wikimedia.org/wiki/Category:"
_AT_A_TIME = 128  # images per batch, few enough that their arrays fit into the CPU cache
_SEVERAL_LANDMARKS = 0.05  # share of queries with relevant images of two landmarks


class Release:
    """Ids and places of a world's photographs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.places, self.ids = {}, {}
        begin = 0
        for which in SETS:
            landmarks = world.landmarks[which]
            self.places[which] = np.repeat(landmarks.place, landmarks.images)
        self.places["test"] = world.rng(4).permutation(world.landmarks["index"].place)
        wanted = world.count(IMAGES["test"])
        self.places["test"] = np.resize(self.places["test"], wanted)
        for which, places in self.places.items():
            self.ids[which] = _scramble(np.arange(begin, begin + len(places), dtype=np.uint64), world.seed)
            begin += len(places)

    def write(self, folder: Path) -> None:
        """Write all missing files."""
        pictures = Pictures(self.world)
        for kind, (which, tars) in enumerate(TARS.items()):
            order = np.argsort(self.ids[which])
            for number, part in enumerate(np.array_split(order, tars)):
                if not (folder / checksum_name(which, number)).is_file():
                    rng = self.world.rng(5, kind, number)
                    _write_tar(folder, which, number, self.ids[which][part], self.places[which][part], pictures, rng)
        self._write_lists(folder)

    def _write_lists(self, folder: Path) -> None:
        metadata, truth = folder / "metadata", folder / "ground_truth"
        for which in SETS:
            self._write_labels(metadata, which)
        clean = _by_place(self.ids["train"], self.places["train"])
        _write_csv(metadata / "train_clean.csv", ["landmark_id", "images"], ([p, " ".join(i)] for p, i in clean))
        first = int(self.world.landmarks["index"].place[0])
        owned = zip(_hex(self.ids["index"]), self.places["index"] - first, strict=True)
        _write_csv(metadata / "index_image_to_landmark.csv", ["id", "landmark_id"], owned)
        _write_csv(metadata / "test.csv", ["id"], ([i] for i in _hex(self.ids["test"])))
        rows = list(self._queries())
        _write_csv(truth / "retrieval_solution_v2.1.csv", ["id", "images", "Usage"], rows)
        recognition = ([image, "", usage] for image, _, usage in rows)
        _write_csv(truth / "recognition_solution_v2.1.csv", ["id", "landmarks", "Usage"], recognition)

    def _write_labels(self, metadata: Path, which: str) -> None:
        world, landmarks = self.world, self.world.landmarks[which]
        urls = [COMMONS + quote(world.title(int(p)).replace(" ", "_")) for p in landmarks.place]
        _write_csv(metadata / f"{which}_label_to_category.csv", ["landmark_id", "category"], enumerate(urls))
        rows = (
            [number, urls[number], name.text, *world.groups[name.group]]
            for number, name in ((int(n), world.names[landmarks.name[n]]) for n in np.flatnonzero(landmarks.labelled))
        )
        columns = ["landmark_id", "category", "supercategory", *LEVELS[1:]]
        _write_csv(metadata / f"{which}_label_to_hierarchical.csv", columns, rows)

    def _queries(self) -> Iterable[tuple[str, str, str]]:
        """Yield id, relevant index images and usage of every test image, scored images first."""
        world, ids = self.world, _hex(self.ids["test"])
        rng = world.rng(6)
        relevant = dict(_by_place(self.ids["index"], self.places["index"]))
        scored = min(SCORED, max(LEAST_SCORED, world.count(SCORED)), len(ids))
        for number, (image, place) in enumerate(zip(ids, self.places["test"], strict=True)):
            if number >= scored:
                yield image, "None", "Ignored"
                continue
            found = relevant[int(place)]
            if rng.random() < _SEVERAL_LANDMARKS:
                found = [*found, *relevant[int(rng.choice(self.places["index"]))]]
            usage = "Public" if number < PUBLIC * scored else "Private"
            yield image, " ".join(dict.fromkeys(found)), usage


def _write_tar(
    folder: Path,
    which: str,
    number: int,
    ids: np.ndarray,
    places: np.ndarray,
    pictures: Pictures,
    rng: np.random.Generator,
) -> None:
    path, digest = folder / tar_name(which, number), hashlib.md5()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", buffering=1 << 20) as file:
        for begin in range(0, len(ids), _AT_A_TIME):
            part = slice(begin, begin + _AT_A_TIME)
            for image, picture in zip(_hex(ids[part]), pictures.draw(places[part], rng), strict=True):
                data = jpeg(picture)
                name = f"./{image[0]}/{image[1]}/{image[2]}/{image}.jpg"
                member = b"".join((member_header(name, len(data)), data, padding(len(data))))
                file.write(member)
                digest.update(member)
        file.write(END_OF_ARCHIVE)
        digest.update(END_OF_ARCHIVE)
    checksum = folder / checksum_name(which, number)
    checksum.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(checksum, f"{digest.hexdigest()}  {path.name}\n".encode())


def _scramble(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Return distinct 64-bit ids that look random (the finalizer of SplitMix64, which is one to one)."""
    with np.errstate(over="ignore"):
        x = numbers + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hex(ids: np.ndarray) -> list[str]:
    return [f"{image:016x}" for image in ids.tolist()]


def _by_place(ids: np.ndarray, places: np.ndarray) -> Iterable[tuple[int, list[str]]]:
    """Yield every place with the ids of its images, which are consecutive."""
    found, edges = np.unique(places, return_index=True)
    for place, images in zip(found.tolist(), np.split(ids, edges[1:]), strict=True):
        yield place, _hex(images)


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


if __name__ == "__main__":
    scale, seed, place = sys.argv[1:]
    Release(World(float(scale), int(seed))).write(Path(place))
