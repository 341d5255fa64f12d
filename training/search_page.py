"""What a search has found, as one HTML page that needs nothing else."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jinja2
from PIL import Image

from hgld.dataset import ShardDataset
from hgld.decoding.orientation import turn_of, turned
from hgld.decoding.pillow import decode_with_pillow
from hgld.errors import StorageError
from training.image_files import read_images
from training.search import Found, Match

_PIXELS = 160
_MOST_BYTES = 9_000_000  # of pictures; mail and browsers take pages of 10 MB


@dataclass
class _Pictures:
    """Small pictures as data URIs, as many as fit the page."""

    bytes: int = 0
    made: dict[str, str] = field(default_factory=dict)

    def uri(self, name: str, opened: Callable[[], Image.Image]) -> str:
        """Of a picture; empty where there is no room any more, and then it is not opened either."""
        if self.bytes > _MOST_BYTES:
            return ""
        if name not in self.made:
            self.made[name] = _uri(opened())
        self.bytes += len(self.made[name])
        return self.made[name] if self.bytes <= _MOST_BYTES else ""


def _uri(picture: Image.Image) -> str:
    picture.thumbnail((_PIXELS, _PIXELS))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=82)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")


@dataclass(frozen=True)
class _Strip:
    """A query and what was found for it; pictures as data URIs."""

    name: str
    picture: str
    matches: list[tuple[Match, str]]


def write_search_page(path: Path, found: Sequence[Found], dataset: ShardDataset) -> None:
    """Write a page of the queries' pictures and those of what was found, with classes at every level.

    It loads nothing from anywhere; names are escaped. Pictures that would make it larger than 9 MB are left out, and
    their places say so.

    Args:
        path: of the page; replaced whole.
        found: what :func:`training.search.search` gave.
        dataset: that was searched.

    Raises:
        InputError: a picture cannot be read any more.
        StorageError: the page cannot be written.
    """
    pictures = _Pictures()
    queries = [pictures.uri(f"file {one.image}", partial(_open, Path(one.image))) for one in found]  # they come first
    strips = [
        _Strip(
            one.image,
            query,
            [(match, pictures.uri(f"item {match.key}", partial(dataset.image, match.index))) for match in one.matches],
        )
        for one, query in zip(found, queries, strict=True)
    ]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    template = environment.from_string(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    page = template.render(dataset=dataset.manifest.name, strips=strips)
    aside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(page, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error.strerror or error}). Write the page elsewhere.") from error


def _open(path: Path) -> Image.Image:
    ((image,), _) = read_images([path])
    return Image.fromarray(turned(decode_with_pillow(image), turn_of(image.orientation)))
