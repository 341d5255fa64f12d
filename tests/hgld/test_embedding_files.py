"""Evaluation of embeddings and labels in files: every format gives the same values, and invalid files fail."""

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from hgld.errors import ConfigError, InputError, TableError
from hgld.evaluation.embedding_files import read_embeddings, read_labels
from hgld.evaluation.evaluate import evaluate, evaluate_labelled
from hgld.evaluation.evaluate_files import evaluate_files
from hgld.evaluation.options import EvaluationOptions
from hgld.evaluation.postprocess import Whitening, expand_queries
from hgld.evaluation.report import RetrievalReport
from hgld.labels import label_codes
from tests.rows import each_row, refused

LEVELS = ("product", "category")
LABELS = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [2, 1], [2, 1], [3, 1], [3, -1]])


@pytest.fixture
def embeddings():
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(4, 5))
    return (centres[LABELS[:, 0]] + 0.7 * generator.normal(size=(8, 5))).astype(np.float32)


def only(metric):
    return EvaluationOptions(metrics=(metric,))


def write_labels(path, labels=LABELS, **columns):
    table = pl.DataFrame({"key": [f"k{n}" for n in range(len(labels))], **dict(zip(LEVELS, labels.T, strict=True))})
    table = table.with_columns(**columns)
    table.write_parquet(path) if path.suffix == ".parquet" else table.write_csv(path)
    return path


def write_embeddings(path, table):
    np.save(path, table) if path.suffix == ".npy" else save_file({"embeddings": torch.from_numpy(table)}, path)
    return path


@pytest.fixture
def files(tmp_path, embeddings):
    return write_embeddings(tmp_path / "e.npy", embeddings), write_labels(tmp_path / "l.csv")


@pytest.mark.parametrize(("suffix", "labels"), [(".npy", ".parquet"), (".safetensors", ".csv")])
def test_every_file_format_gives_the_same_report(tmp_path, embeddings, suffix, labels):
    files = write_embeddings(tmp_path / f"e{suffix}", embeddings), write_labels(tmp_path / f"l{labels}")
    report = evaluate_files(*files, levels=LEVELS)
    assert report.values == evaluate(embeddings, LABELS, levels=LEVELS).values
    by_path = evaluate(*map(str, files), *files, levels=LEVELS)
    assert by_path.values == evaluate(embeddings, LABELS, embeddings, LABELS, levels=LEVELS).values
    assert isinstance(read_embeddings(files[0]), np.memmap) == (suffix == ".npy")  # npy files are memory-mapped
    assert report.settings["files"] == {"embeddings": f"e{suffix}", "labels": f"l{labels}"}
    assert report.settings["protocol"] == "leave-one-out"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_safetensors_of_every_precision_are_read_unchanged(tmp_path, embeddings, dtype):
    table = torch.from_numpy(embeddings).to(dtype)
    save_file({"anything": table, "norms": table.float().norm(dim=1)}, tmp_path / "e.safetensors")
    found = read_embeddings(tmp_path / "e.safetensors")
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, table)


def test_class_names_in_query_and_gallery_files_are_matched(tmp_path, embeddings):
    names = np.array(["ship", "boat", "lake", "pond"])
    for part, rows in (("q", slice(0, None, 2)), ("g", slice(1, None, 2))):
        write_embeddings(tmp_path / f"{part}.npy", embeddings[rows])
        write_labels(tmp_path / f"{part}.csv", LABELS[rows], product=pl.Series(names[LABELS[rows, 0]]))
    query, gallery = ((tmp_path / f"{part}.npy", tmp_path / f"{part}.csv") for part in "qg")
    report = evaluate_files(*query, gallery_embeddings=gallery[0], gallery_labels=gallery[1], levels=LEVELS)
    expected = evaluate(embeddings[::2], LABELS[::2], embeddings[1::2], LABELS[1::2], levels=LEVELS)
    assert report.values == expected.values
    assert report.settings["protocol"] == "query against gallery"


def test_distractors_are_read_from_a_file(tmp_path, embeddings, files):
    report = evaluate_files(
        *files, levels=LEVELS, distractors=write_embeddings(tmp_path / "d.npy", embeddings * 2), options=only("R@1")
    )
    assert report.values == {"R@1/product": 0.0, "R@1/category": 0.0}
    assert report.settings["distractors"] == 8
    assert report.settings["files"]["distractors"] == "d.npy"


def test_whitening_precedes_query_expansion_and_both_are_recorded(tmp_path, embeddings, files):
    whitening = Whitening.fit(np.random.default_rng(5).normal(size=(50, 5)), fitted_on="noise", dimensions=4)
    whitening.save(tmp_path / "w.safetensors")
    options = EvaluationOptions(metrics=("AP",), query_expansion=(2.0, 3))
    report = evaluate_files(*files, levels=LEVELS, whitening=tmp_path / "w.safetensors", options=options)
    white, own = whitening.apply(embeddings), np.arange(8)
    expanded = expand_queries(white, white, options, own)
    sides = (expanded, LABELS), (white, LABELS)
    expected = evaluate_labelled(*sides, self_index=own, levels=LEVELS, options=only("AP"))
    assert report.values == expected.values
    assert report.settings["whitening"] == whitening.describe()
    assert report.settings["query_expansion"] == {"alpha": 2.0, "k": 3}


def test_gallery_labels_without_embeddings_repeated_levels_and_unusable_devices_are_refused(files):
    with pytest.raises(ConfigError, match="is missing; pass both"):
        evaluate_files(*files, levels=LEVELS, gallery_labels=files[1])
    with pytest.raises(TableError, match="levels are product, product"):
        evaluate_files(*files, levels=["product"] * 2)
    for expansion, device in ((None, "cuda:99"), ((2, 3), "meta"), (None, "gpu")):
        options = EvaluationOptions(device=device, query_expansion=expansion)
        with pytest.raises(ConfigError, match=rf"device '{device}' cannot be used here \(.{{1,200}}\)\. Use"):
            evaluate_files(*files, levels=LEVELS, options=options)


def test_pickles_in_npy_are_never_loaded(tmp_path, capsys):
    file = tmp_path / "e.npy"
    attack = type("Attack", (), {"__reduce__": lambda self: (print, ("attacked",))})
    np.save(file, np.array([[attack()]], object), allow_pickle=True)
    with pytest.raises(InputError, match=r"e\.npy"):
        read_embeddings(file)
    assert not capsys.readouterr().out


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_broken_embedding_files_and_other_tables_are_refused(tmp_path, embeddings, suffix):
    file = tmp_path / f"e{suffix}"
    write_embeddings(file, embeddings)
    cut_short = file.read_bytes()[:-9]
    file.unlink()
    for content in (None, b"", b"something else entirely" * 100, cut_short):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InputError, match=r"not a readable|cannot be read"):
            read_embeddings(file)
    for table, said in ((np.zeros((3, 4), np.int32), "dtype"), (np.zeros(3, np.float32), "table")):
        with pytest.raises(InputError, match=said):
            read_embeddings(write_embeddings(file, table))


def test_unsupported_embedding_formats_are_refused(tmp_path, embeddings):
    np.savez(tmp_path / "e.npz", embeddings)
    for name in ("e.npz", "e"):
        with pytest.raises(InputError, match=r"expected embeddings as \.npy, \.safetensors"):
            read_embeddings(tmp_path / name)
    save_file({"a": torch.eye(2), "b": torch.eye(2)}, tmp_path / "e.safetensors")
    with pytest.raises(
        InputError, match="tensors a, b; expected one two-dimensional tensor, or a tensor named 'embeddings'"
    ):
        read_embeddings(tmp_path / "e.safetensors")


@each_row("suffix", ["csv", "parquet"])
def test_empty_class_names_are_unknown_and_match_nothing(tmp_path, suffix):
    path = tmp_path / f"l.{suffix}"
    names = pl.DataFrame({"product": ["", " ", "cat", "cat ", None], "category": [""] * 5})
    names.write_csv(path, quote_style="always") if suffix == "csv" else names.write_parquet(path)
    table = read_labels(path, LEVELS)
    assert label_codes([table], LEVELS)[0].tolist() == [[-1, -1]] * 2 + [[0, -1]] * 2 + [[-1, -1]]
    write_embeddings(tmp_path / "e.npy", np.eye(5) + 0.1)
    report = evaluate_files(tmp_path / "e.npy", path, levels=LEVELS, options=only("R@1"))
    assert report.undefined == {"R@1/product": 3}
    assert report.settings["levels_without_labels"] == ["category"]
    ids = pl.DataFrame({"category": [1, 2]})
    assert label_codes([table, ids], ["category"])[1].tolist() == [[1], [2]]


@each_row(
    ("texts", "codes"),
    [
        ("1,12,-1,,0", [1, 12, -1, -1, 0]),  # all cells are canonical integers, so they are class ids
        ("01,1,-1,,1", [0, 1, -1, -1, 1]),  # "01" is not canonical, so all cells are names
        (f"1,{2**64},-1,,1", [0, 1, -1, -1, 0]),  # one number has more than 64 bits, so all cells are names
    ],
)
def test_csv_numbers_are_ids_only_if_each_is_spelled_canonically(tmp_path, texts, codes):
    (tmp_path / "l.csv").write_text("product\n" + "".join(f'"{text}"\n' for text in texts.split(",")))
    assert label_codes([read_labels(tmp_path / "l.csv", ["product"])], ["product"])[0][:, 0].tolist() == codes


def evaluate_with_labels(name, text, *, files):
    path = files[1].with_name(name)
    path.write_text(text)
    evaluate_files(files[0], path, levels=LEVELS)


test_unusable_labels_are_refused = refused(
    evaluate_with_labels,
    [
        ("l.csv", "product,category\n0,0\n", "1 rows, but .*e.npy has 8"),
        ("l.csv", "product,kind\n0,0\n", "no column 'category'; its columns are product, kind"),
        ("l.csv", "product,category\n" + "0.5,0\n" * 8, r"'product' holds numbers such as 0\.5"),
        ("l.txt", "", r"expected labels as \.parquet or \.csv"),
    ],
    TableError,
)


@each_row(
    ("words", "said"),
    [("", "missing --embeddings"), ("--embeddings e.npy --labels l.csv", "missing --levels")],
)
def test_command_names_missing_options(refusal, words, said):
    assert said in refusal("evaluate", *words.split())


def test_command_prints_json_or_a_table_and_writes_the_report(files, embeddings, hgld, json_of, tmp_path):
    words = ["evaluate", "--embeddings", files[0], "--labels", files[1], "--levels", "product,category"]
    expected, printed = evaluate(embeddings, LABELS, levels=LEVELS), json_of(*words)
    assert (printed["values"], printed["undefined"]) == (expected.values, expected.undefined)
    code, out, _ = hgld(*words, "--metrics", "R@1,H-AP", "--out", tmp_path / "report.json")
    written = RetrievalReport.load_json(tmp_path / "report.json").values
    assert list(written) == ["R@1/product", "R@1/category", "H-AP"]
    fine, coarse, whole = (f"{value:.4f}" for value in written.values())
    assert code == 0
    assert "| metric | product | category | all levels |" in out
    assert f"| R@1 | {fine} | {coarse} |  |" in out
    assert f"| H-AP |  |  | {whole} |" in out
    assert len(out.split()) < 80  # without the settings
