"""Measure images, PDFs, audio and video from their bytes: pixels, pages and seconds, which providers bill.

All of these are read from headers, and the work is limited for any bytes: the beginning of an image or a recording, at
most 32 MB of a PDF, 2 MB of its compressed objects, and 8 MB of these after decompression. `media_figures` has the
tokens of each.

The module is long because each format has a reader of a few lines.
"""

from __future__ import annotations

import binascii
import math
import re
import struct
import zlib
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from langchain_core.messages import BaseMessage

from convstore.messages.media import KINDS, data_bytes, is_media, read_media
from convstore.messages.media_types import true_type

MediaKind: TypeAlias = Literal[
    "image", "thumbnail", "pdf", "scan", "text", "file", "audio", "video"
]
"""Kinds of media. A thumbnail is an image in low detail; a scan is a PDF without a font."""

PAGE_BYTES: Final = 50_000
"""Assumed bytes of a page in a file of unknown page count."""
AUDIO_BYTES: Final = 16_000
VIDEO_BYTES: Final = 250_000
"""Assumed bytes of a second of a recording of unknown rate; `AUDIO_BYTES` is the same for audio."""

_HEAD: Final = 300_000
"""Number of bytes that are searched for the size of an image or the format of a recording."""
_START: Final = 32
_MOST_OF_PDF: Final = 32 << 20
_MOST_UNPACKED: Final = 8 << 20
_MOST_PACKED: Final = 2 << 20
_PIECE: Final = 64 << 10
_STREAM_BYTES: Final = 256_000
_MOST_OBJECTS: Final = 2_000
_NEAR: Final = 2_000
_MOST_PAGES: Final = 10_000
_LEAST_PAGE: Final = 4
"""Minimum bytes of a page; a page count that needs more bytes than the file has is reduced."""
_LEAST_SECOND: Final = 500
"""Minimum bytes of a second of audio (4 kbit/s); a length that needs more bytes than the file has is reduced."""
_MOST_SEGMENTS: Final = 2_000
_MP3_SEARCH: Final = 4_096
_PAGE: Final = re.compile(rb"/Type\s{0,9}/Page(?![a-zA-Z])")
_TREE: Final = re.compile(rb"/Type\s{0,9}/Pages\b")
_COUNT: Final = re.compile(rb"/Count\s{1,9}(\d{1,7})(?!\d)")
_PACKED: Final = re.compile(rb"/ObjStm")
_NO_SIZE: Final = frozenset({0x01, 0xFF, *range(0xD0, 0xD9)})
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SPACES: Final = b" \t\r\n"
_USUAL_BASE64: Final = bytes.maketrans(b"-_", b"+/")
_MP3_RATES_1: Final = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_RATES_2: Final = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_HERTZ: Final = (44_100, 48_000, 32_000)
_MP3_HALVED: Final = {3: 0, 2: 1, 0: 2}
"""By MPEG version, how often the sample rate is halved."""


class MediaSize(NamedTuple):
    """The measures of an image, a file or a recording that determine its tokens and its size in a request.

    Attributes:
        kind: Kind of the media by its bytes, or else by the type of its block.
        length: Characters of Base64, or of a text, in a request; 0 if the block has only an address.
        shape: Width and height of an image in pixels, the pages of a PDF or another file, or the milliseconds of a
            recording; () if unknown, and for a text.
    """

    kind: MediaKind
    length: int
    shape: tuple[int, ...] = ()

    @property
    def is_image(self) -> bool:
        """True if it counts towards the number of images in a request."""
        return self.kind in ("image", "thumbnail")

    @property
    def pages(self) -> int:
        """The number of pages of a PDF, 0 for anything else."""
        return self.shape[0] if self.shape and self.kind in ("pdf", "scan") else 0


KIND_NAMES: Final = frozenset(get_args(MediaKind))
_LENGTHS: Final = {"image": (0, 2), "thumbnail": (0, 2), "text": (0,)}
"""The valid lengths of a shape by kind; other kinds may have 0 or 1 numbers."""


def media_of(message: BaseMessage) -> tuple[MediaSize, ...]:
    """Return the sizes of the images, files and recordings in a message, in order.

    >>> from langchain_core.messages import HumanMessage
    >>> media_of(HumanMessage([{"type": "image", "url": "https://example.org/cat.png"}]))
    (MediaSize(kind='image', length=0, shape=()),)
    """
    content: Any = message.content
    if type(content) is not list:
        return ()
    sizes = map(media_size, content)
    return tuple(size for size in sizes if size is not None)


def stored_media(values: Any) -> tuple[MediaSize, ...]:
    """Parse the sizes that an entry stores as lists.

    >>> stored_media([["image", 400, 640, 480], ["pdf", 4_000, 3]])[1].pages
    3

    Raises:
        ValueError: They are damaged.
    """
    return tuple(map(_stored, values))


def _stored(value: Any) -> MediaSize:
    kind, length, *shape = value
    numbers = (length, *shape)
    is_valid = kind in KIND_NAMES and len(shape) in _LENGTHS.get(kind, (0, 1))
    if not is_valid or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("the size of an image or a file is damaged")
    return MediaSize(kind, length, tuple(shape))


def media_size(block: Any) -> MediaSize | None:
    """Return the size of a media block, None for any other block.

    >>> media_size({"type": "file", "mime_type": "text/plain", "base64": "QUJDRA=="})
    MediaSize(kind='text', length=4, shape=())
    """
    if not is_media(block):
        return None
    media = read_media(block)
    data = media.data
    length = _length(data)
    kind = _kind(block, media.mime_type)
    if not length:
        return MediaSize(_detail(block) if kind == "image" else kind, 0)
    mime_type = true_type(data)
    if mime_type == "application/pdf":
        return _pdf(_decoded(data, _MOST_OF_PDF), length, data_bytes(data))
    if kind == "image" or mime_type:
        shape = pixels_of(_decoded(data, _HEAD)) or ()
        return MediaSize(_detail(block), length, shape)
    size = data_bytes(data)
    if kind == "file":
        is_text = media.mime_type.startswith("text/")
        return MediaSize("text", size) if is_text else _file(size, length)
    seconds = _seconds(data, size) if kind == "audio" else size / VIDEO_BYTES
    return MediaSize(kind, length, (math.ceil(seconds * 1_000),))


def _kind(block: dict[str, Any], mime_type: str) -> MediaKind:
    """Return the kind of a block by its type; a file with the label of a recording is a recording."""
    kind = cast(MediaKind, KINDS[block["type"]])
    label = mime_type.partition("/")[0]
    return cast(MediaKind, label) if kind == "file" and label in ("audio", "video") else kind


def _detail(block: dict[str, Any]) -> MediaKind:
    """Return "thumbnail" for an image of OpenAI's APIs with low detail, else "image"."""
    inner = block.get("image_url")
    holders = (block, inner if isinstance(inner, dict) else {})
    is_low = any(holder.get("detail") == "low" for holder in holders)
    return "thumbnail" if is_low else "image"


def _file(size: int, length: int) -> MediaSize:
    """Return the size of a file of unknown page count, which is estimated from its length."""
    return MediaSize("file", length, (math.ceil(size / PAGE_BYTES),))


def _pdf(data: bytes, length: int, size: int) -> MediaSize:
    """Return the size of a PDF."""
    pages, is_scan = pdf_pages(data)
    if not pages:
        return _file(size, length)._replace(kind="pdf")
    return MediaSize("scan" if is_scan else "pdf", length, (pages,))


def request_length(message: BaseMessage) -> int:
    """Return the total length of the media in a message as Base64."""
    content: Any = message.content
    if type(content) is not list:
        return 0
    return sum([_length(read_media(block).data) for block in content if is_media(block)])


def _length(data: str | bytes) -> int:
    """Return the length of data as Base64."""
    return -(-len(data) // 3) * 4 if isinstance(data, bytes) else len(data)


def _decoded(data: str | bytes, most: int, start: int = 0) -> bytes:
    """Return up to `most` bytes of the data from `start` on; empty for data that is not Base64."""
    if isinstance(data, bytes):
        return data[start : start + most]
    first = start // 3 * 4
    packed = data[first : first + most // 3 * 4 + 4].encode("ascii", "ignore")
    usual = packed.translate(_USUAL_BASE64, _SPACES).rstrip(b"=")
    try:
        found = binascii.a2b_base64(usual[: len(usual) // 4 * 4])
        rest = usual[len(usual) // 4 * 4 :]
        if len(rest) > 1:
            found += binascii.a2b_base64(rest.ljust(4, b"="))
    except (binascii.Error, ValueError):
        return b""
    return found[start % 3 : start % 3 + most]


def pixels_of(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, WebP or JPEG from its beginning; None for other data or an empty image.

    >>> pixels_of(b"GIF89a" + (640).to_bytes(2, "little") + (480).to_bytes(2, "little"))
    (640, 480)
    """
    found = _pixels_in(data)
    return found if found and all(found) else None


def _pixels_in(data: bytes) -> tuple[int, int] | None:
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack(">II", data[16:24])
            return width, height
        if data.startswith((b"GIF87a", b"GIF89a")):
            width, height = struct.unpack("<HH", data[6:10])
            return width, height
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
        return _jpeg(data) if data.startswith(b"\xff\xd8") else None
    except struct.error:  # the data is cut off
        return None


def _webp(data: bytes) -> tuple[int, int] | None:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return (
            1 + int.from_bytes(data[24:27], "little"),
            1 + int.from_bytes(data[27:30], "little"),
        )
    if kind == b"VP8L" and len(data) >= 25:
        packed = int.from_bytes(data[21:25], "little")
        return 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return the size in the first frame of a JPEG, after skipping the segments before it."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        at = data.find(b"\xff", at)
        if at < 0 or at + 9 > len(data):
            return None
        marker = data[at + 1]
        if marker in _FRAMES:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        if marker in _NO_SIZE:
            at += 1
            continue
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None


def pdf_pages(data: bytes) -> tuple[int, bool]:
    """Return the number of pages of a PDF, 0 if unknown, and True if it has no font, like a scan.

    >>> pdf_pages(b"%PDF-1.4 1 0 obj << /Type /Pages /Count 3 >> endobj 2 0 obj << /Type /Font >> endobj")
    (3, False)
    """
    unpacked, is_whole = _unpacked_objects(data)
    pages, most = _pages_in(data)
    more, count = _pages_in(unpacked)
    has_font = b"/Font" in data or b"/Font" in unpacked
    is_read = is_whole and b"/Encrypt" not in data
    fitting = min(_MOST_PAGES, len(data) // _LEAST_PAGE)
    return min(max(pages + more, most, count), fitting), is_read and not has_font


def _unpacked_objects(data: bytes) -> tuple[bytes, bool]:
    """Return the objects in the object streams of a PDF, and False if a limit or damage left some out."""
    pieces: list[bytes] = []
    left = _MOST_UNPACKED
    unread = _MOST_PACKED
    end = 0
    is_whole = True
    for number, stream in enumerate(_PACKED.finditer(data)):
        if number >= _MOST_OBJECTS or left <= 0 or unread <= 0:
            is_whole = False
            break
        if stream.start() < end:
            continue
        start = data.find(b"stream", stream.end(), stream.end() + _NEAR)
        if start < 0:
            continue
        end = start + len(b"stream")
        packed = data[end : end + min(_STREAM_BYTES, unread)].lstrip(b"\r\n")
        found, read, is_complete = _inflate(packed, left)
        pieces.append(found)
        left -= len(found)
        unread -= read
        end += read
        is_whole = is_whole and is_complete
    return b"\n".join(pieces), is_whole


def _inflate(packed: bytes, most: int) -> tuple[bytes, int, bool]:
    """Decompress at most `most` bytes; return them, the number of bytes read, and True if the stream is complete."""
    unpacker = zlib.decompressobj()
    pieces: list[bytes] = []
    size = 0
    rest = packed
    try:
        while rest and not unpacker.eof and size < most:
            pieces.append(unpacker.decompress(rest, min(_PIECE, most - size)))
            size += len(pieces[-1])
            rest = unpacker.unconsumed_tail
    except zlib.error:
        # The bytes before the damage are used, and count towards the limits.
        return b"".join(pieces), len(packed), False
    read = len(packed) - len(rest) - len(unpacker.unused_data)
    return b"".join(pieces), read, unpacker.eof


def _pages_in(data: bytes) -> tuple[int, int]:
    """Return the number of pages among some objects, and the largest count of their page trees."""
    pages = sum(1 for _ in islice(_PAGE.finditer(data), _MOST_PAGES))
    counts = [0]
    for tree in islice(_TREE.finditer(data), _MOST_OBJECTS):
        nearest = max(0, tree.start() - _NEAR)
        start = max(nearest, data.rfind(b"<<", nearest, tree.start()))
        end = data.find(b">>", tree.end(), tree.end() + _NEAR)
        near = data[start : end if end >= 0 else tree.end() + _NEAR]
        counts += map(int, _COUNT.findall(near))
    return pages, max(counts)


def _seconds(data: str | bytes, size: int) -> float:
    """Return the length of a WAV or an MP3 by its headers, and of other audio by a typical rate, in seconds."""
    head = _decoded(data, _START)
    if head.startswith(b"RIFF") and head[8:12] == b"WAVE":
        found = _wav_seconds(_decoded(data, _HEAD), size)
    else:
        tag = _id3_length(head)
        found = _mp3_seconds(_decoded(data, 2 * _MP3_SEARCH, tag), size - tag)
    return min(size / AUDIO_BYTES if found is None else found, size / _LEAST_SECOND)


def _wav_seconds(data: bytes, size: int) -> float | None:
    """Return the length of a WAV in seconds: the length of its data divided by the rate in its format."""
    at = 12
    rate = 0
    while at + 8 <= len(data):
        name = data[at : at + 4]
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"data":
            return min(length, size - at - 8) / rate if rate else None
        if name == b"fmt ":
            rate = int.from_bytes(data[at + 16 : at + 20], "little")
        at += 8 + length + length % 2
    return None


def _id3_length(head: bytes) -> int:
    """Return the length of the tag before an MP3, 0 without one."""
    if not head.startswith(b"ID3") or len(head) < 10:
        return 0
    length = 0
    for byte in head[6:10]:
        length = length << 7 | byte & 0x7F
    return 10 + length


def _mp3_seconds(data: bytes, size: int) -> float | None:
    """Return the length of an MP3 in seconds by its first frame: by the number of frames, or else by the bit rate."""
    for at in range(min(len(data) - 4, _MP3_SEARCH)):
        frame = data[at : at + 200]
        if not _begins_frame(frame):
            continue
        version = frame[1] >> 3 & 3
        is_first = version == 3
        if frames := _frames(frame):
            hertz = _MP3_HERTZ[frame[2] >> 2 & 3] >> _MP3_HALVED[version]
            return frames * (1_152 if is_first else 576) / hertz
        kilobits = (_MP3_RATES_1 if is_first else _MP3_RATES_2)[frame[2] >> 4]
        return (size - at) * 8 / (kilobits * 1_000)
    return None


def _begins_frame(data: bytes) -> bool:
    """Return True for the header of an MP3 frame with a known version, layer and rates."""
    if data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version = data[1] >> 3 & 3
    layer = data[1] >> 1 & 3
    hertz = data[2] >> 2 & 3
    return version != 1 and layer == 1 and data[2] >> 4 not in (0, 15) and hertz != 3


def _frames(frame: bytes) -> int:
    """Return the number of frames in the first frame of an MP3 with a variable rate, 0 if it does not have it."""
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    if at < 0 or at + 12 > len(frame) or not frame[at + 7] & 1:
        return 0
    return int.from_bytes(frame[at + 8 : at + 12], "big")
