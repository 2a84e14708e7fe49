"""Images, PDFs and recordings are measured from their bytes, whatever these are, and count as providers bill them."""

from __future__ import annotations

import random
import struct
import time
import zlib
from base64 import b64encode, urlsafe_b64encode
from functools import partial
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from convstore.messages.media import media_description, read_media
from convstore.messages.media_figures import (
    FIGURES,
    NAMED_TOKENS,
    UNKNOWN,
    UNMEASURED_TOKENS,
    MediaFigures,
)
from convstore.messages.media_sizes import (
    MediaSize,
    media_of,
    media_size,
    pdf_pages,
    pixels_of,
    stored_media,
)
from convstore.messages.sizes import media_bytes
from convstore.messages.tokens import approximate_tokens, counter_name


def png(width: int, height: int) -> bytes:
    """The head of a PNG."""
    return b"\x89PNG\r\n\x1a\n" + bytes(8) + struct.pack(">II", width, height) + bytes(9)


def jpeg(width: int, height: int) -> bytes:
    """The head of a JPEG, after a profile of 140 KB in three segments."""
    segment = b"\xff\xe2" + (65_000).to_bytes(2, "big") + bytes(64_998)
    frame = b"\xff\xc2\x00\x0b\x08" + struct.pack(">HH", height, width) + bytes(4)
    return b"\xff\xd8" + 2 * segment + frame


def webp(kind: bytes, body: bytes) -> bytes:
    """The head of a WebP."""
    return b"RIFF\0\0\0\0WEBP" + kind + bytes(4) + body


def wav(seconds: int, rate: int = 48_000) -> bytes:
    """A WAV with a chunk before its format."""
    form = struct.pack("<HHIIHH", 1, 1, rate // 2, rate, 2, 16)
    head = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0" + form
    return head + b"data" + (seconds * rate).to_bytes(4, "little") + bytes(seconds * rate)


def mp3(frames: int, *, tag: int = 0) -> bytes:
    """An MP3 of 128 kbit/s; 383 frames are ten seconds."""
    id3 = b"ID3\x04\0\0" + bytes([tag >> 21 & 127, tag >> 14 & 127, tag >> 7 & 127, tag & 127])
    frame = b"\xff\xfb\x90\x00" + bytes(413)
    return (id3 + bytes(tag) if tag else b"") + frame * frames


def pdf(pages: int, *, font: bool = True, packed: bool = False) -> bytes:
    """A PDF as writers make it; packed into object streams of 20 pages."""
    tree = b"1 0 obj << /Type /Pages /Kids [2 0 R] /Count %d >> endobj\n" % pages
    page = b"2 0 obj << /Type /Page /Parent 1 0 R >> endobj\n"
    letters = b"3 0 obj << /Type /Font /BaseFont /Helvetica >> endobj\n" * font
    if not packed:
        return b"%PDF-1.4\n" + tree + page * pages + letters
    streams = [tree + letters] + [page * min(20, pages - at) for at in range(0, pages, 20)]
    head = b"9 0 obj << /Type /ObjStm /N 20 >> stream\r\n"
    bodies = [head + zlib.compress(stream) + b"\nendstream endobj\n" for stream in streams]
    return b"%PDF-1.7\n" + b"".join(bodies)


def block(kind: str, data: bytes, mime_type: str = "") -> dict[str, Any]:
    """A media block of LangChain."""
    return {"type": kind, "base64": b64encode(data).decode(), "mime_type": mime_type}


def shape(kind: str, data: bytes, mime_type: str = "") -> tuple[str, tuple[int, ...]]:
    """Kind and shape of a block."""
    size = media_size(block(kind, data, mime_type))
    assert size is not None
    return size.kind, size.shape


@each_case(
    ("data", "width", "height"),
    [
        (png(560, 280), 560, 280),
        (jpeg(1_923, 1_081), 1_923, 1_081),
        (b"GIF89a" + struct.pack("<HH", 320, 200), 320, 200),
        (webp(b"VP8X", b"\0\0\0\0\x82\x07\x00\x38\x04\x00"), 1_923, 1_081),
        (webp(b"VP8L", b"\x2f" + (63 | 31 << 14).to_bytes(4, "little")), 64, 32),
        (webp(b"VP8 ", bytes(6) + struct.pack("<HH", 640, 480)), 640, 480),
    ],
)
def test_pixels_are_read_from_the_head_of_an_image(data: bytes, width: int, height: int) -> None:
    """Also of an image that its block calls something else, of bytes, and of Base64 for addresses or in lines."""
    whole = b64encode(data).decode()
    lines = "\n".join(whole[at : at + 76] for at in range(0, len(whole), 76))
    for written in (
        block("image", data, "image/jpg"),
        block("file", data, "application/octet-stream"),
        {"type": "image", "data": data},
        {"type": "image", "base64": urlsafe_b64encode(data).decode()},
        {"type": "image", "base64": lines},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + whole}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": whole}},
    ):
        found = media_size(written)
        assert found is not None
        assert (found.kind, found.shape) == ("image", (width, height))
        assert abs(found.length - len(whole)) <= len(lines) - len(whole)


@each_case("packed", [False, True])
def test_pages_of_a_pdf_are_counted(packed: bool) -> None:
    """In object streams, too; one without a font is a scan."""
    assert shape("file", pdf(37, packed=packed)) == ("pdf", (37,))
    assert shape("file", pdf(37, packed=packed, font=False)) == ("scan", (37,))
    assert shape("image", pdf(3, packed=packed), "image/png") == ("pdf", (3,))
    assert pdf_pages(pdf(37, packed=packed).replace(b"/Count 37", b"/Count 99999999"))[0] == 37


def test_seconds_of_a_recording_are_read_from_its_head() -> None:
    """WAV by the rate in its format, MP3 by its bit rate or its frames, also after a picture."""
    assert shape("audio", wav(7)) == ("audio", (7_000,))
    assert shape("file", wav(7), "audio/wav") == ("audio", (7_000,))
    for tag in (0, 600_000):
        kind, [milliseconds] = shape("audio", mp3(383, tag=tag))
        assert kind == "audio"
        assert 9_900 < milliseconds < 10_100
    named = b"\xff\xfb\x90\x00" + bytes(32) + b"Xing\0\0\0\x01" + (1_000).to_bytes(4, "big")
    assert shape("audio", named + bytes(20_000)) == ("audio", (26_123,))
    assert shape("audio", bytes(32_000)) == ("audio", (2_000,))
    assert shape("video", bytes(500_000)) == ("video", (2_000,))


def test_a_message_counts_what_its_media_show() -> None:
    """The text is counted as ever; what only an address or an id names counts a thousand tokens."""
    text = {"type": "text", "text": "What is this?"}
    alone = approximate_tokens([HumanMessage([text])])
    for media, tokens in (
        (block("image", png(560, 280)), 200),
        (block("file", pdf(14)), 14 * 2_400),
        (block("file", bytes(150_000), "application/pdf"), 3 * 2_400),
        (block("file", b"word" * 75, "text/plain"), 75),
        (block("audio", wav(10)), 320),
        (block("video", bytes(1_000_000)), 1_200),
        ({"type": "image", "url": "https://example.org/cat.png"}, UNMEASURED_TOKENS),
        ({"type": "file", "file_id": "file-1"}, UNMEASURED_TOKENS),
        ({"type": "document", "source": {"type": "text", "data": "Law."}}, None),
    ):
        message = HumanMessage([text, media])
        if tokens is None:
            assert media_of(message) == ()
            assert approximate_tokens([message]) < alone + 60
        else:
            assert approximate_tokens([message]) == alone + tokens


def test_media_are_read_in_the_form_of_amazon_bedrock() -> None:
    """Bytes two levels down; a format names the type of an image or a recording, but not of a file."""
    inner = {"format": "png", "source": {"bytes": png(560, 280)}}
    image = {"type": "image", "image": inner}
    assert media_size(image) == MediaSize("image", 44, (560, 280))
    assert (read_media(image).mime_type, media_bytes(image)) == ("image/png", 33)
    table = {"format": "csv", "name": "prices", "source": {"bytes": b"a,b\n" * 1_000}}
    for document in ({"type": "document", "document": table}, {"type": "document", **table}):
        assert media_size(document) == MediaSize("file", 5_336, (1,))
        assert media_description(document) == 'file "prices", 4,000 bytes'
    recording = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}}
    assert read_media(recording).mime_type == "audio/mp3"


IMAGE = MediaSize("image", 0, (1_024, 1_024))
LARGE = MediaSize("image", 0, (4_000, 3_000))
SMALL = MediaSize("thumbnail", 0, (1_024, 1_024))
PDF = MediaSize("pdf", 0, (2,))
SCAN = MediaSize("scan", 0, (2,))
AUDIO = MediaSize("audio", 0, (10_000,))
VIDEO = MediaSize("video", 0, (10_000,))


@each_case(
    ("name", "tokens"),
    [
        ("openai", (765, 765, 85, 3_030, 1_530, 100, NAMED_TOKENS)),
        ("gpt-4o-2024-08-06", (765, 765, 85, 3_030, 1_530, 100, NAMED_TOKENS)),
        ("gpt-5.2", (630, 630, 70, 2_760, 1_260, 100, NAMED_TOKENS)),
        ("openai/o4-mini", (1_762, 2_642, 441, 6_124, 4_624, 100, NAMED_TOKENS)),
        ("anthropic", (1_369, 4_784, 1_369, 4_700, 3_200, NAMED_TOKENS, NAMED_TOKENS)),
        (
            "us.anthropic.claude-sonnet-4-5",
            (1_369, 1_568, 1_369, 4_700, 3_200, NAMED_TOKENS, NAMED_TOKENS),
        ),
        ("gemini-2.5-pro", (1_032, 6_192, 1_032, 516, 516, 320, 2_630)),
        ("google_genai", (1_120, 1_120, 1_120, 1_120, 1_120, 320, 1_020)),
        ("a-model-of-tomorrow", (1_369, 1_600, 1_369, 4_800, 3_200, 320, 3_000)),
    ],
)
def test_each_provider_has_its_figures(name: str, tokens: tuple[int, ...]) -> None:
    """As its documents say: image, large image, image in low detail, two pages, two scans, audio, video."""
    figures = MediaFigures.named(name)
    sizes = (IMAGE, LARGE, SMALL, PDF, SCAN, AUDIO, VIDEO)
    assert tuple(map(figures.tokens, sizes)) == tokens


def test_a_model_speaks_in_tokens_of_its_own() -> None:
    """OpenAI counts twice as much for what a model said; others count the same."""
    assert FIGURES["openai"].tokens(AUDIO, by_model=True) == 200
    assert UNKNOWN.tokens(AUDIO, by_model=True) == UNKNOWN.tokens(AUDIO)
    spoken = block("audio", wav(10))
    counted = [
        approximate_tokens([kind([spoken])], media=FIGURES["openai"])
        for kind in (HumanMessage, AIMessage)
    ]
    assert counted[1] - counted[0] in range(100, 104)


def test_a_counter_with_figures_has_a_name_of_its_own() -> None:
    """Other figures are another counter, so that stored counts are made again."""
    counters = [
        partial(approximate_tokens, media=MediaFigures.named(name)) for name in ("gpt-5", "claude")
    ]
    names = {counter_name(counter) for counter in [approximate_tokens, *counters]}
    assert len(names) == 3
    assert counter_name(counters[0]) == counter_name(
        partial(approximate_tokens, media=MediaFigures.named("gpt-5-2025-08-07"))
    )


EMPTY_BLOCKS = bytes.fromhex(
    "04c081000000000090ff6b100007020000000040feaf41001c080000000000f9bf06017020000000"
    "0000e4ff1a04c081000000000090ff6b100007020000000040feaf41001c080000000000f9bf0601"
    "70200000000000e4ff1a"
)
"""Eight blocks of deflate without a byte in them, each with a table of codes that takes time to build."""


def _nested_streams(number: int) -> bytes:
    """A PDF of object streams without a byte in them, each of which is the rest of the one before."""
    mark = b"/ObjStm stream\x78\x9c"
    length = len(mark).to_bytes(2, "little")
    stored = b"\0" + length + bytes(255 - byte for byte in length) + mark
    return b"%PDF-1.7\n" + mark + (EMPTY_BLOCKS * 160 + stored) * number


def _hostile() -> dict[str, bytes]:
    noise = random.Random(7).randbytes(1 << 20)
    objects = b"".join(b"%d 0 obj << /Type /Page >> endobj\n" % at for at in range(100_000))
    tree = b"/Type /Pages "
    trees = zlib.compress(tree * 340)
    bomb = zlib.compress(bytes(50 << 20))
    broken = b"/ObjStm stream\n" + bomb[:-20] + bytes(20)
    return {
        "a PDF with 100,000 objects": b"%PDF-1.4\n" + objects,
        "a PDF of trees": b"%PDF-1.4\n" + b"<< /Type /Pages /Count 1 >>" * 100_000,
        "a PDF of trees without a beginning": b"%PDF-1.4\n" + b"/Count 1 " * 100_000 + tree * 2_000,
        "a PDF of packed trees": b"%PDF-1.7\n" + (b"/ObjStm stream\n" + trees) * 2_000,
        "a PDF of streams in streams": _nested_streams(70),
        "a PDF of marks": b"%PDF-1.7\n" + b"/ObjStm " * 300_000,
        "a PDF of streams that are damaged": b"%PDF-1.7\n" + broken * 60,
        "a PDF of streams that unpack to much": b"%PDF-1.7\n/ObjStm stream\n" + bomb,
        "a PDF of spaces": b"%PDF-1.4\n" + b"/Type" + b" " * (1 << 20),
        "a PDF of noise": b"%PDF-1.4\n" + noise * 2,
        "a PNG that is cut off": png(640, 480)[:18],
        "a PNG without a size": png(0, 0),
        "a JPEG of fill bytes": b"\xff\xd8" + b"\xff" * (1 << 20),
        "a JPEG of empty segments": b"\xff\xd8" + b"\xff\xe0\x00\x00" * (1 << 18),
        "an MP3 of garbage": b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + noise,
        "a WAV with a rate of one": wav(1).replace((48_000).to_bytes(4, "little"), b"\1\0\0\0"),
        "a WAV of empty chunks": b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 100_000,
        "noise": noise,
        "nothing": b"",
    }


HOSTILE = _hostile()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_take_bounded_time_and_count_no_more_than_they_could(name: str) -> None:
    """Less than two seconds of a processor, far above what they take, and at most 10,000 pages."""
    data = HOSTILE[name]
    kind = "image" if "PNG" in name or "JPEG" in name else "file"
    begin = time.process_time()
    for written in (kind, "audio"):
        size = media_size({"type": written, "data": data})
        assert size is not None
        assert UNKNOWN.tokens(size) <= 2_400 * 10_000
        assert stored_media([[size.kind, size.length, *size.shape]]) == (size,)
    assert time.process_time() - begin < 2


@given(
    st.binary(max_size=400),
    st.sampled_from(
        [
            b"",
            b"%PDF-",
            b"\xff\xd8",
            b"RIFF0000WAVE",
            b"ID3",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF0000WEBPVP8 ",
        ]
    ),
)
def test_any_bytes_have_a_size(data: bytes, start: bytes) -> None:
    """No error, and no size below zero, by the figures of every provider."""
    for kind in ("image", "file", "audio", "video"):
        size = media_size({"type": kind, "data": start + data})
        assert size is not None
        assert all(figures.tokens(size) >= 0 for figures in FIGURES.values())


@each_case("value", [["image", 1, 2], ["pdf", 1, -1], ["cat", 1], ["pdf", True, 1], [], "image"])
def test_damaged_sizes_are_refused(value: Any) -> None:
    """An entry that holds them is damaged."""
    with pytest.raises(ValueError, match=r"damaged|unpack|expected"):
        stored_media([value])


def test_bytes_that_are_no_image_have_no_pixels() -> None:
    """Nor do images that are cut off before their size, or that say that they have no area: an estimate counts."""
    for data in (b"", b"GIF89a", png(1, 1)[:20], jpeg(1, 1)[:-12], webp(b"VP8 ", b""), b"%PDF"):
        assert pixels_of(data) is None
    assert pixels_of(png(0, 0)) is pixels_of(jpeg(0, 9)) is None
