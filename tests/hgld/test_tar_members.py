"""Tar headers equal headers written by tarfile. The tar reader reads tars of tarfile and reports damage."""

import contextlib
import gzip
import io
import tarfile
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgld.data.tar import END_OF_ARCHIVE, Member, member_header, padding, stream_members
from hgld.errors import InputError
from tests.rows import each_row, refused

FORMATS: dict[str, Any] = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
NAME_PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=("Cc",)), min_size=1)
NAMES = st.lists(NAME_PARTS.filter(lambda part: part not in (".", "..")), min_size=1, max_size=6).map("/".join)

FILES = st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=6, unique_by=lambda file: file[0])


def written(files):
    """Return a tar with headers written by hgld."""
    parts = [member_header(name, len(data)) + data + padding(len(data)) for name, data in files]
    return b"".join(parts) + END_OF_ARCHIVE


def by_tarfile(files, form):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in files:
            tar.addfile(_info(name, len(data)), io.BytesIO(data))
    return buffer.getvalue()


def _info(name, size, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type, info.linkname = size, 0o644, kind, link
    return info


def streamed(data, most=1 << 20, **options):
    return list(stream_members(io.BytesIO(data), where="x.tar", max_member_bytes=most, **options))


# -- writing ----------------------------------------------------------------------------------------------------------


@given(name=NAMES, size=st.integers(0, 1 << 40))
def test_headers_equal_headers_written_by_tarfile(name, size):
    assert member_header(name, size) == _info(name, size).tobuf(tarfile.PAX_FORMAT)


@given(FILES)
def test_tars_equal_tars_written_by_tarfile(files):
    by_library = by_tarfile(files, tarfile.PAX_FORMAT)
    assert written(files).ljust(len(by_library), b"\0") == by_library


def test_webdataset_reads_tars_written_by_hgld():
    with warnings.catch_warnings(action="ignore"):
        from webdataset.tariterators import group_by_keys, tar_file_expander

    data = written([("a/b.jpg", b"1"), ("a/b.json", b"{}"), ("c.jpg", b"2")])
    samples = list(group_by_keys(tar_file_expander([{"url": "x.tar", "stream": io.BytesIO(data)}])))
    assert [(s["__key__"], s["jpg"], s.get("json")) for s in samples] == [("a/b", b"1", b"{}"), ("c", b"2", None)]


test_invalid_member_names_and_sizes_are_refused = refused(
    member_header, [("", 1), ("folder/", 1), ("nul\0byte", 1), ("\ud800.jpg", 1), ("a", -1)], InputError, "member"
)


# -- reading ----------------------------------------------------------------------------------------------------------


@given(FILES, st.sampled_from(sorted(FORMATS)))
def test_reader_reads_tars_written_by_tarfile(files, form):
    try:
        data = by_tarfile(files, FORMATS[form])
    except ValueError:  # the ustar format cannot store names above 255 bytes
        return
    expected = [(name.removeprefix("./"), content) for name, content in files]
    members = streamed(data)
    assert [(m.name, content) for m, content in members] == expected
    assert all(data[m.offset : m.offset + m.size] == content for m, content in members)
    assert all(m.kind == "file" and m.fault is None for m, _ in members)


@given(NAMES, st.integers(8**11, 1 << 60), st.sampled_from(["gnu", "pax"]))
def test_reader_reads_sizes_beyond_eight_gigabytes(name, size, form):
    header = _info(name, size).tobuf(FORMATS[form])
    member, _ = next(stream_members(io.BytesIO(header), where="x.tar", max_member_bytes=1))
    assert (member.size, member.offset) == (size, len(header))


@each_row(
    ("name", "kind", "link", "fault"),
    [
        ("a/../../evil.jpg", tarfile.REGTYPE, "", "leads out of the folder"),
        ("/etc/evil.jpg", tarfile.REGTYPE, "", "is an absolute path"),
        ("a.jpg", tarfile.SYMTYPE, "/etc/passwd", "is a symbolic link"),
        ("a.jpg", tarfile.LNKTYPE, "b.jpg", "is a hard link"),
        ("a.jpg", tarfile.CHRTYPE, "", "neither file nor directory"),
        ("a.jpg", tarfile.GNUTYPE_SPARSE, "", "neither file nor directory"),
        ("a\nb.jpg", tarfile.REGTYPE, "", "control characters"),
    ],
)
@each_row("form", sorted(FORMATS))
def test_unsafe_members_have_an_error(name, kind, link, fault, form):
    hostile = _info(name, 0, kind, link).tobuf(FORMATS[form])
    (bad, nothing), (sound, content) = streamed(hostile + written([("sound.jpg", b"1")]))
    assert fault in bad.fault
    assert (nothing, sound.name, sound.fault, content) == (b"", "sound.jpg", None, b"1")


def test_directories_and_leading_dots_are_harmless():
    data = _info("./a", 0, tarfile.DIRTYPE).tobuf() + written([("./a/b.jpg", b"1")])
    assert [(m.name, m.kind, m.fault) for m, _ in streamed(data)] == [
        ("a/", "directory", None),
        ("a/b.jpg", "file", None),
    ]


def test_non_utf8_name_is_escaped():
    data = by_tarfile([("a.jpg", b"1")], tarfile.USTAR_FORMAT).replace(b"a.jpg", b"\xe9.jpg", 1)
    assert streamed(_with_sound_checksum(data))[0][0].name == "\\xe9.jpg"


def _with_sound_checksum(data):
    total = sum(data[:148]) + 8 * 32 + sum(data[156:512])
    return data[:148] + b"%06o\0 " % total + data[156:]


# -- damage -----------------------------------------------------------------------------------------------------------

THREE = [("a.jpg", b"1" * 600), ("b.jpg", b"2" * 600), ("c.jpg", b"3" * 600)]
EACH = 512 + 1024


def until_error(data):
    """Return the members before the error, and its message."""
    members = stream_members(io.BytesIO(data), where="x.tar", max_member_bytes=1 << 20)
    found: list[Member] = []
    with pytest.raises(InputError) as caught:
        found.extend(member for member, _ in members)  # extend() keeps the members before the error
    return found, str(caught.value)


def test_truncated_tar_raises_an_error_with_its_name_and_offset():
    whole = written(THREE)
    for length in range(0, len(whole) - 1024, 100):
        found, message = until_error(whole[:length])
        assert message.startswith("x.tar: ")
        assert "offset" in message
        assert [m.name for m in found] == ["a.jpg", "b.jpg", "c.jpg"][: len(found)]
        assert len(found) * EACH <= length + 424 + 512  # a member is complete even if its padding is cut off


def pax(records, kind=tarfile.XHDTYPE):
    return _info("././@PaxHeader", len(records), kind).tobuf() + records + padding(len(records))


DAMAGED = [  # (tar, number of members before the damage, error, (name, error) of each recovered member)
    (written(THREE)[: EACH + 612], 1, "'b.jpg': the tar is cut off at offset 2148", [("b.jpg", "the tar is cut off")]),
    (
        written(THREE).replace(b"b.jpg", b"c.jpg"),
        1,
        f"damaged header at offset {EACH}",
        [("", "damaged header"), ("c.jpg", None)],
    ),
    (_info("././@LongLink", 1 << 30, tarfile.GNUTYPE_LONGNAME).tobuf(), 0, "extended header of 1073741824 bytes", None),
    (pax(b"13 path=evil\n", tarfile.XGLTYPE), 0, "global pax header", None),
    *(
        (pax(records) + written(THREE), 0, "pax header", None)
        for records in (b"8 path=x\n", b"0 path=a\n", b"12 size=-100\n", b"-5 path=a\n")
    ),
]


@each_row(("data", "before", "words", "recovered"), DAMAGED)
def test_damage_raises_an_error_and_recovery_resumes_at_the_next_valid_header(data, before, words, recovered):
    found, message = until_error(data)
    assert [m.name for m in found] == ["a.jpg"][:before]
    assert words in message
    if recovered is not None:
        members = [m for m, _ in streamed(data, recover=True)]
        assert [(m.name, m.fault) for m in members] == [("a.jpg", None), *recovered]
        assert [m.kind for m in members] == ["file", "damage", "file"][: len(members)]


@given(st.data())
def test_flipped_bytes_do_not_crash_the_tar_reader(data):
    files = [("a.jpg", b"1" * 40), ("n" * 120, b"2"), ("c.jpg", b"3")]
    form = data.draw(st.sampled_from(sorted(FORMATS)))
    tar = bytearray(by_tarfile(files[:: 2 if form == "ustar" else 1], FORMATS[form])[:6000])
    for _ in range(data.draw(st.integers(1, 6))):
        tar[data.draw(st.integers(0, len(tar) - 1))] = data.draw(st.integers(0, 255))
    recovered = streamed(bytes(tar), recover=True)
    assert len(recovered) < 40
    before = []
    with contextlib.suppress(InputError):
        before.extend(stream_members(io.BytesIO(bytes(tar)), where="x.tar", max_member_bytes=1 << 20))
    assert before == recovered[: len(before)]


def test_large_members_have_an_error_and_no_bytes():
    members = streamed(written([("a.jpg", b"1" * 2000), ("b.jpg", b"2")]), most=1000)
    assert members[0][0].fault == "has 2000 bytes, more than the 1000 allowed"
    assert [content for _, content in members] == [b"", b"2"]


class _Pipe(io.RawIOBase):
    """Stream that returns a few bytes at a time and cannot seek."""

    def __init__(self, data):
        self.rest = data

    def readable(self):
        return True

    def read(self, size=-1):
        part, self.rest = self.rest[: min(size, 77)], self.rest[min(size, 77) :]
        return part


def test_pipes_with_short_reads_are_read_to_the_end():
    members = stream_members(_Pipe(written(THREE)), where="pipe", max_member_bytes=1 << 20)
    assert [(m.name, content) for m, content in members] == THREE


def test_compressed_tars_are_streamed_and_their_damage_raises_errors():
    packed = gzip.compress(written(THREE))
    with gzip.open(io.BytesIO(packed)) as file:
        assert [content for _, content in stream_members(file, where="x.tgz", max_member_bytes=1000)] == [
            content for _, content in THREE
        ]
    for damaged in (packed[:-30], packed[:40] + b"\xff\xff\xff" + packed[43:]):
        with gzip.open(io.BytesIO(damaged)) as file, pytest.raises(InputError, match=r"x\.tgz"):
            list(stream_members(file, where="x.tgz", max_member_bytes=1000))
