"""Readers of untrusted files, each with a small valid sample that the campaign mutates."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from PIL import Image
from safetensors.torch import save_file

import hgld
from hgld import Hierarchy
from hgld.data.dataset import open_dataset
from hgld.data.decode import decode_batch
from hgld.data.format import parse_item_json
from hgld.data.images import EncodedImage, read_header
from hgld.data.loader import Loader
from hgld.data.views import TestView
from hgld.errors import HgldError
from hgld.evaluation.embedding_files import read_embeddings, read_keys, read_labels
from hgld.evaluation.evaluate import evaluate
from hgld.evaluation.postprocess import Whitening
from hgld.evaluation.protocols.ground_truths import read_retrieval_solution
from hgld.evaluation.report import RetrievalReport
from hgld.pipelines.check.index import rebuild_index
from hgld.pipelines.check.verify import verify
from hgld.pipelines.hierarchy.landmark_images import find_images, read_image
from hgld.pipelines.hierarchy.names.classes import NameTable
from hgld.pipelines.hierarchy.names.landmark_tables import read_landmarks
from hgld.pipelines.hierarchy.review.decisions import read_decisions
from hgld.pipelines.hierarchy.scrape.infobox import instance_of
from hgld.pipelines.hierarchy.scrape.wiki_api import parse_entity
from hgld.pipelines.shards.build import read_release
from hgld.pipelines.shards.config import SourceConfig
from hgld.pipelines.shards.reading import check_decodes
from hgld.pipelines.shards.sources import OWN_DATA, SOURCES
from hgld.pipelines.stage import silent
from hgld.pipelines.web import AnswerError, _json_object
from hgld.prediction import Calibration
from hgld.samplers import EpochSampler
from hgld.taxonomy.formats import read_taxonomy
from hgld.training.config import read_config
from hgld.training.inference.embedder import load_run
from hgld.training.log import read_rows
from hgld.training.models.backbone import read_weights
from hgld.training.models.backbones import BackboneOptions
from hgld.training.models.onnx_network import onnx_network
from tests.fake_releases.__main__ import maker
from tests.fake_releases.pictures import jpeg, png
from tests.hgld.small_dataset import write_dataset
from tests.hgld.streamed_dataset import VIEW, grouped_items
from tests.hgld.test_taxonomy_formats import WHOLE


@dataclass(frozen=True)
class Reader:
    """A reader of one file type.

    Attributes:
        make: function that writes a valid sample into an empty folder.
        read: function that reads this sample as the subcommands do.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]


READERS: dict[str, Reader] = {}


def reader(name: str, make: Callable[[Path], object]) -> Callable[[Callable[[Path], object]], None]:
    """Register a reader."""

    def register(read: Callable[[Path], object]) -> None:
        READERS[name] = Reader(make, read)

    return register


def file_reader(name: str, file: str, make: str | Callable[[Path], object], read: Callable[[Path], object]) -> None:
    """Register a reader of one file. Its sample is a string, or a function that writes the file."""
    write = make if callable(make) else lambda path: path.write_text(make)
    READERS[name] = Reader(lambda folder: write(folder / file), lambda folder: read(folder / file))


# -- dataset directories ---------------------------------------------------------------------------------------------


def _dataset(folder: Path) -> None:
    write_dataset(folder, grouped_items([4] * 8), per_shard=16)


@reader("open_dataset", _dataset)
def _(folder: Path) -> None:
    dataset = open_dataset(folder)
    for batch in Loader(dataset, EpochSampler(len(dataset), min(16, len(dataset))), VIEW, on_fault="leave"):
        batch.images.sum()


@reader("stream", _dataset)
def _(folder: Path) -> None:
    tars = sorted(str(path) for path in folder.glob("*.tar"))
    for batch in hgld.stream(tars, 4, 2, view=VIEW, num_streams=1, batches_per_epoch=3):
        batch.images.sum()


@reader("verify", _dataset)
def _(folder: Path) -> None:
    verify(folder, decode=True, progress=silent)


@reader("index", _dataset)
def _(folder: Path) -> None:
    rebuild_index(folder, force=True, progress=silent)


_ITEM = (
    '{"labels": [3, 1], "names": ["a", "b"], "split": "train", "source": "x", "levels": ["fine", "coarse"], '
    '"box": [0, 0, 9, 9]}'
)
file_reader("item json", "item.json", _ITEM, lambda path: parse_item_json(path.read_bytes(), "item.json"))


def _write_images(folder: Path) -> None:
    rng, pixels = np.random.default_rng(0), np.random.default_rng(1).integers(0, 255, (32, 40, 3), dtype=np.uint8)
    (folder / "a.jpg").write_bytes(jpeg(rng, orientation=6))
    (folder / "b.png").write_bytes(png(rng))
    for name, options in (("c.jpg", {"progressive": True}), ("d.webp", {}), ("e.gif", {})):
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, {"jpg": "JPEG"}.get(name[2:], name[2:].upper()), **options)
        (folder / name).write_bytes(out.getvalue())


def _each(folder: Path, read: Callable[[Path], object]) -> None:
    """Read every file of a folder, then raise the first error."""
    errors = []
    for path in sorted(folder.iterdir()):
        try:
            read(path)
        except HgldError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _image(path: Path) -> None:
    data, out = path.read_bytes(), torch.empty(1, 3, 16, 16, dtype=torch.uint8)
    check_decodes(data, header := read_header(data))
    image = EncodedImage(data, header.orientation, None, path.name)
    parameters = TestView(16, 16).parameters([header.upright[0]], [header.upright[1]])
    decode_batch([image], parameters, out)


READERS["images"] = Reader(_write_images, lambda folder: _each(folder, _image))


# -- hierarchies and taxonomies --------------------------------------------------------------------------------------


for _kind, _text in WHOLE.items():
    file_reader(f"taxonomy {_kind}", "tree", _text, lambda path, kind=_kind: read_taxonomy(path, kind))

_LEVELS = {name: [f"{c}{n >> c}" for n in range(4)] for c, name in enumerate(("fine", "mid", "coarse"))}
file_reader("hierarchy", "tree.parquet", Hierarchy.from_columns(_LEVELS).to_parquet, Hierarchy.read)


# -- embeddings, labels, results -------------------------------------------------------------------------------------


def _table(rows: int = 8) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 4)).astype(np.float32)


def _ranked(path: Path) -> None:
    found = read_embeddings(path)
    labels = np.arange(len(found))[:, None] // 2
    evaluate(found, labels, metrics=["R@1", "AP"]) if len(labels) < 1_000 else None


file_reader("embeddings npy", "e.npy", lambda path: np.save(path, _table()), _ranked)


_LABELS = pl.DataFrame(
    {"key": list("abcd"), "split": ["query", "gallery"] * 2, "fine": ["x", "x", "y", "y"], "coarse": ["z"] * 4}
)


def _labels(path: Path) -> None:
    read_labels(path, ["fine", "coarse"])
    read_keys(path)


file_reader("labels csv", "l.csv", _LABELS.write_csv, _labels)
file_reader("labels parquet", "l.parquet", _LABELS.write_parquet, _labels)
file_reader(
    "report",
    "report.json",
    lambda path: evaluate(_table(), np.arange(8)[:, None] // 2, metrics=["R@1", "AP"]).save_json(path),
    RetrievalReport.load_json,
)
file_reader(
    "whitening",
    "w.safetensors",
    lambda path: Whitening.fit(_table(64), fitted_on="sample").save(path),
    lambda path: Whitening.load(path).apply(_table()),
)


def _make_calibration(path: Path) -> None:
    labels = np.repeat(np.arange(16), 4)
    hgld.calibrate(_table(64), np.stack([labels, labels // 4], axis=1), levels=("fine", "coarse")).save(path)


def _calibration(path: Path) -> None:
    found = Calibration.load(path)
    labels = np.arange(32)[:, None] // 2 // np.array([1, 4])
    if found.levels == ("fine", "coarse"):
        hgld.predict(_table(4), _table(32), labels, calibration=found, levels=found.levels)


file_reader("calibration", "calibration.json", _make_calibration, _calibration)


# -- protocols' files ------------------------------------------------------------------------------------------------


_SOLUTION = "id,images,Usage\n" + "".join(
    f"{n:016x},{n + 1:016x} {n + 2:016x},{'Public' if n % 2 else 'Private'}\n" for n in range(6)
)


file_reader("gldv2 solution", "s.csv", _SOLUTION, read_retrieval_solution)


# -- releases --------------------------------------------------------------------------------------------------------

for _source in [name for name in SOURCES if name not in OWN_DATA]:
    READERS[f"release {_source}"] = Reader(
        lambda folder, source=_source: maker(source)(folder, 0),
        lambda folder, source=_source: read_release(source, folder, SourceConfig()),
    )


def _manifest(folder: Path) -> None:
    (folder / "pictures").mkdir()
    rows = []
    for n in range(6):
        (folder / "pictures" / f"{n}.jpg").write_bytes(jpeg(np.random.default_rng(n)))
        rows.append({"image": f"pictures/{n}.jpg", "fine": f"c{n // 2}", "coarse": "all", "split": "train"})
    pl.DataFrame(rows).write_csv(folder / "table.csv")
    pl.DataFrame(rows).write_parquet(folder / "table.parquet")


def _release(path: Path) -> None:
    if path.is_file():
        read_release("manifest", path, SourceConfig(levels=("fine", "coarse")))


READERS["manifest"] = Reader(_manifest, lambda folder: _each(folder, _release))


def _folders(folder: Path) -> None:
    for n in range(6):
        place = folder / "train" / f"top{n // 4}" / f"fine{n // 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{n}.jpg").write_bytes(jpeg(np.random.default_rng(n)))


@reader("folders", _folders)
def _(folder: Path) -> None:
    read_release("folders", folder, SourceConfig())


# -- tables and pages of build-hierarchy -----------------------------------------------------------------------------


_CASTLES = "".join(f"{n},http://commons.wikimedia.org/wiki/Category:Castle_{n}\n" for n in range(8))
_NAMES = 'name,class\ncastle,fort\nabbey,church\n"tower, old",fort\n'
file_reader("landmarks csv", "l.csv", f"landmark_id,category\n{_CASTLES}", lambda path: read_landmarks({"train": path}))
file_reader(
    "name table",
    "n.csv",
    _NAMES,
    lambda path: list(NameTable.read(path, ("name", "class"), {"title": "name"}).rows()),
)


_DECISIONS = """schema_version: 1
role: annotator
decisions:
- action: move
  names:
  - "mountain pass"
  to: "pass"
  who: "ada"
  why: "a pass is not a summit"
  when: "2026-11-21T09:30:00.001Z"
- action: rename
  group: "church"
  to: "churches"
  who: "ada"
  when: "2026-11-21T09:31:00.001Z"
"""


file_reader("decisions", "d.yaml", _DECISIONS, lambda path: read_decisions([path]))


def _landmarks(folder: Path) -> None:
    data = jpeg(np.random.default_rng(0))
    (folder / "train" / "1").mkdir(parents=True)
    (folder / "train" / "1" / "a.jpg").write_bytes(data)
    (folder / "images.csv").write_text("split,landmark_id,path\ntrain,1,train/1/a.jpg\n")


@reader("landmark images", _landmarks)
def _(folder: Path) -> None:
    for places in find_images(folder).values():
        for place in places:
            read_image(place)


_ENTITY = """{"id": "Q5", "labels": {"en": {"language": "en", "value": "castle"}}, "claims": {"P31": [
{"mainsnak": {"snaktype": "value", "datavalue": {"value": {"id": "Q1"}}}, "rank": "normal"}], "P279": []}}"""


def _entity(path: Path) -> None:
    try:
        answer = _json_object("http://127.0.0.1/", path.read_bytes())
    except AnswerError as error:
        raise HgldError(str(error)) from error
    parse_entity(answer, "en")


file_reader("wiki entity", "q.json", _ENTITY, _entity)
_PAGE = (
    '<html><body><table id="wdinfobox"><tr><th>Instance of</th><td><a href="//www.wikidata.org/wiki/Q1">castle</a>, '
    'ruin</td></tr></table><div class="redirectMsg"><a href="/wiki/Category:X">Category:X</a></div></body></html>'
)


file_reader("category page", "p.html", _PAGE, lambda path: instance_of(path.read_bytes()))

# -- runs and weights ------------------------------------------------------------------------------------------------


def _run(folder: Path) -> None:
    from tests.training.untrained_run import write_run

    write_run(folder / "run")


@reader("run", _run)
def _(folder: Path) -> None:
    read_config(folder / "run" / "config.json")
    load_run(folder / "run", "best")


_WEIGHTS = {"a.weight": torch.ones(3, 4), "b": torch.zeros(5)}
file_reader("weights pt", "w.pt", lambda path: torch.save(_WEIGHTS, path), read_weights)
file_reader("weights safetensors", "w.safetensors", lambda path: save_file(_WEIGHTS, path), read_weights)


def _onnx(folder: Path) -> None:
    from onnx import TensorProto, helper, save_model

    shapes = [("images", ["n", 3, 8, 8]), ("found", ["n", 3, 1, 1])]
    images, found = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes)
    node = helper.make_node("GlobalAveragePool", ["images"], ["found"])
    graph = helper.make_graph([node], "tiny", [images], [found])
    save_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(folder / "n.onnx")
    )
    steps = [{"name": "resize", "short_side": 8}, {"name": "center_crop", "size": 8}]
    (folder / "n.onnx.json").write_text(json.dumps({"transforms": steps}))


@reader("onnx", _onnx)
def _(folder: Path) -> None:
    onnx_network(str(folder / "n.onnx"), BackboneOptions("default", load_weights=True, token=None, image_size=None))


_LOG = pl.DataFrame({"step": [1, 2], "loss": [0.5, 0.25]})
file_reader("log csv", "log.csv", _LOG.write_csv, read_rows)
