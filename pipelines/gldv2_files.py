"""The files of the Google Landmarks Dataset v2: what its owners publish, and where each lies.

The same relative paths serve as addresses below :data:`BASE_URL` and as places below a local folder::

    train/images_000.tar ... images_499.tar     index/images_000.tar ... images_099.tar
    test/images_000.tar ... images_019.tar      md5sum/train/md5.images_000.txt ...
    metadata/train_clean.csv ...                ground_truth/retrieval_solution_v2.1.csv ...

Source: https://github.com/cvdfoundation/google-landmark (Weyand, Araujo, Cao and Sim, CVPR 2020).
"""

import re
from collections.abc import Iterable

from hgld.errors import ConfigError, InputError

BASE_URL = "https://s3.amazonaws.com/google-landmark"
TARS = {"train": 500, "index": 100, "test": 20}  # tars a split
MAX_TAR_BYTES = 8 << 30  # the largest has about 1 GB
MAX_CSV_BYTES = 1 << 30
METADATA = {  # the lists that hierarchies and shards are made from; addresses of images and their authors are left out
    "train": ("train_clean.csv", "train_label_to_category.csv", "train_label_to_hierarchical.csv"),
    "index": ("index_image_to_landmark.csv", "index_label_to_category.csv", "index_label_to_hierarchical.csv"),
    "test": ("test.csv", "retrieval_solution_v2.1.csv", "recognition_solution_v2.1.csv"),
}
_MD5 = re.compile(r"([0-9a-fA-F]{32})[ \t*]+(\S+)\s*\Z")


def tar_name(split: str, number: int) -> str:
    """``index/images_003.tar``.

    Raises:
        ConfigError: there is no such split, or no tar of that number.
    """
    if split not in TARS:
        raise ConfigError(f"GLDv2 has no split {split!r}; its splits are {', '.join(TARS)}.")
    if not 0 <= number < TARS[split]:
        raise ConfigError(f"GLDv2's {split} set has no tar {number}; its tars are 0-{TARS[split] - 1}.")
    return f"{split}/images_{number:03d}.tar"


def checksum_name(split: str, number: int) -> str:
    """``md5sum/index/md5.images_003.txt``: the checksum that the owners publish for a tar; raises as tar_name does."""
    stem = tar_name(split, number).rpartition("/")[2].removesuffix(".tar")
    return f"md5sum/{split}/md5.{stem}.txt"


def metadata_names(splits: Iterable[str]) -> tuple[str, ...]:
    """The lists of these splits: ``metadata/train_clean.csv``, ``ground_truth/retrieval_solution_v2.1.csv``, ..."""
    return tuple(
        f"{'ground_truth' if 'solution' in name else 'metadata'}/{name}" for split in splits for name in METADATA[split]
    )


def parse_checksum(text: str, name: str, where: str) -> str:
    """The MD5 in a checksum file, as md5sum writes it: 32 hex digits and the tar's file name.

    Args:
        text: the file's content.
        name: the tar's file name, ``images_003.tar``.
        where: the checksum file, for the message.

    Raises:
        InputError: it is not of that form, or of another tar.
    """
    match = _MD5.match(text.strip())
    if match is None or match[2].rpartition("/")[2] != name:
        raise InputError(f"{where} says {text.strip()[:80]!r}; expected 32 hex digits and {name}. Fetch it anew.")
    return match[1].lower()
