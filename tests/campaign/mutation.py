"""Changes of good files: of bytes, of JSON, of archives, of names; any file may take them."""

import copy
import io
import random
import string
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

# These attack pages, terminals, tables and paths; no table is made for the long ones.
HOSTILE_TEXTS = (
    *("", " ", ".", "..", "/", "../../outside", "/etc/passwd", "a/b", "a\\b", "con", "name."),
    *(
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "=cmd|' /C calc'!A0",
        "@SUM(1)",
    ),
    *("\x1b[2J\x1b[31m", "\x07", "a\nb", "a\r\nb", "a\x00b", "\u202eabc", "\ufeff", "\ud800"),
    *("x" * 300, "x" * 5000, "é" * 200, "[bold]", "[/]", "%s%n", "{0}", "{{7*7}}", "${HOME}"),
    *("nan", "inf", "None", "null", "true", "1e999", "-0", "0x10", "٣", "１"),
)
HOSTILE_NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 9, 16, 127, 128, 255, 256, 1000, 65535, 10**6),
    *(2**31 - 1, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63), 2**64, 10**30),
    *(0.5, -0.5, 0.0, -0.0, 1e-45, 1e-30, 1e30, 3.5e38, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The bytes broken off, repeated, or with some of them changed."""
    found = bytearray(content)
    kind = rng.choice(("cut", "bytes", "head", "words", "words", "removed", "inserted", "tail"))
    size = len(found)
    if size < 8:
        return rng.randbytes(rng.randrange(64))
    if kind == "cut":
        return bytes(found[: rng.randrange(size)])
    if kind in ("bytes", "head"):
        end = min(size, 400) if kind == "head" else size
        for _ in range(rng.randint(1, 6)):
            found[rng.randrange(end)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    if kind == "words":
        for _ in range(rng.randint(1, 3)):
            place = 4 * rng.randrange(size // 4)
            value = rng.choice(
                (0, 1, 4, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, size, rng.randrange(size))
            )
            if rng.random() < 0.3:  # near to what is there
                (old,) = struct.unpack_from("<I", found.ljust(place + 4, b"\0"), place)
                value = (old + rng.choice((-4, -1, 1, 4, 64))) & 0xFFFFFFFF
            found[place : place + 4] = struct.pack("<I", value)
    if kind in ("removed", "inserted"):
        start = rng.randrange(size)
        stop = min(size, start + rng.choice((1, 4, 16, 256)))
        if kind == "removed":
            del found[start:stop]
        else:
            found[start:start] = found[start:stop] * rng.choice((1, 3, 50))
    if kind == "tail":
        found += rng.randbytes(rng.choice((1, 22, 1000)))
    return bytes(found)


def hostile_value(old: Any, rng: random.Random) -> Any:
    """A value in the place of another one, often of its type."""
    if isinstance(old, str) and rng.random() < 0.6:
        return rng.choice((*HOSTILE_TEXTS, old + rng.choice(HOSTILE_TEXTS), old[: len(old) // 2]))
    if isinstance(old, int | float) and not isinstance(old, bool) and rng.random() < 0.7:
        return rng.choice((*HOSTILE_NUMBERS, old + 1, old - 1, old * 2, -old))
    if isinstance(old, list) and rng.random() < 0.7:
        return rng.choice((old[:-1], old + old, old[::-1], [], old * 50, [old]))
    if isinstance(old, dict) and rng.random() < 0.5:
        return rng.choice(({}, {"a": old}, {**old, rng.choice(HOSTILE_TEXTS): 1}))
    text = "".join(rng.choices(string.printable, k=rng.randrange(20)))
    number = rng.choice(HOSTILE_NUMBERS)
    return rng.choice(
        (None, True, False, number, text, rng.choice(HOSTILE_TEXTS), [], {}, [number])
    )


def changed_value(value: Any, rng: random.Random, *, times: int | None = None) -> Any:
    """A value of JSON with some of its parts changed, left out, doubled or exchanged."""
    found = copy.deepcopy(value)
    for _ in range(times or rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(found))
        if not places:
            return hostile_value(found, rng)
        container, key = rng.choice(places)
        kind = rng.random()
        if kind < 0.15:
            del container[key]
        elif kind < 0.25 and isinstance(container, dict):
            container[rng.choice(HOSTILE_TEXTS)] = container[key]
        elif kind < 0.35:
            other, its_key = rng.choice(places)
            container[key] = copy.deepcopy(other[its_key])
        else:
            container[key] = hostile_value(container[key], rng)
    return found


def _places(value: Any) -> Any:
    """Every container with every key or index."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        keys = one if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            yield one, key
            waiting.append(one[key])


# -- archives --------------------------------------------------------------------------------------

METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_CENTRAL, _LOCAL = b"PK\1\2", b"PK\3\4"
_HOSTILE_MEMBERS = (
    *("../outside", "/tmp/outside", "..\\outside", "C:\\outside", "a/../../outside", "con", "x/"),
    *("a\nb", "\x1b[2J", "x" * 5000, "é", "/", "./labels.txt", "labels.txt/"),
)
_ARCHIVE_KINDS = (
    *("content", "content", "content", "missing", "renamed", "slip", "method", "ratio", "link"),
    *("fields", "fields", "damaged", "twice", "comment", "many", "encrypted"),
)


def archive(
    members: dict[str, bytes], *, method: int = zipfile.ZIP_STORED, comment: bytes = b""
) -> bytes:
    """A zip archive with these members."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as written:
        for name, content in members.items():
            written.writestr(name or "/", content)
        written.comment = comment
    return stream.getvalue()


def members_of(content: bytes) -> dict[str, bytes]:
    """The members of a good archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def hostile_archive(
    members: dict[str, bytes],
    rng: random.Random,
    change: Callable[[str, bytes, random.Random], bytes] = lambda name, content, rng: damaged(
        content, rng
    ),
) -> bytes:
    """An archive like one with these members, with something wrong in it.

    `change` changes the content of a member.
    """
    found, method, comment = dict(members), rng.choice(METHODS[:2]), b""
    kind = rng.choice(_ARCHIVE_KINDS)
    name = rng.choice(sorted(found)) if found else "labels.txt"
    if kind == "content":
        found[name] = change(name, found.get(name, b""), rng)
    elif kind == "missing":
        found.pop(name, None)
    elif kind == "renamed":
        found[rng.choice(_HOSTILE_MEMBERS)] = found.pop(name, b"")
    elif kind == "slip":
        found[rng.choice(_HOSTILE_MEMBERS)] = b"outside"
    elif kind == "method":
        method = rng.choice(METHODS)
    elif kind == "ratio":
        found[name], method = b"\0" * rng.choice((2**20, 2**26)), rng.choice(METHODS[1:3])
    elif kind == "comment":
        comment = rng.choice((b"x" * 60_000, _CENTRAL + b"\0" * 50, b"PK\5\6" + b"\0" * 18))
    elif kind == "many":
        found |= {f"member {number}": b"" for number in range(rng.choice((100, 20_000)))}
    made = archive(found, method=method, comment=comment)
    if kind == "link":
        made = _with_link(found, name)
    if kind == "twice":
        made = _twice(found, name, change(name, found.get(name, b""), rng))
    if kind == "fields":
        made = _with_field(made, rng)
    if kind == "encrypted":
        made = _set(made, 8, struct.pack("<H", 1))
    return damaged(made, rng) if kind == "damaged" else made


def _with_link(members: dict[str, bytes], linked: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if name == linked:
                info.create_system, info.external_attr = 3, 0o120777 << 16
                content = b"/etc/hostname"
            written.writestr(info, content)
    return stream.getvalue()


def _twice(members: dict[str, bytes], name: str, content: bytes) -> bytes:
    import warnings

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, its in [*members.items(), (name, content)]:
            written.writestr(one, its)
    return stream.getvalue()


def _set(content: bytes, offset: int, packed: bytes, *, local: bool = True) -> bytes:
    """A field of the first central header, and of the first local one, where it is 2 bytes less."""
    found = bytearray(content)
    for signature, shift in ((_CENTRAL, 0), *([(_LOCAL, -2)] if local else [])):
        place = found.find(signature)
        if place >= 0:
            place += offset + shift
            found[place : place + len(packed)] = packed
    return bytes(found)


# Fields of the central header: method, CRC, both sizes, lengths of name and extra, offset.
_FIELDS: Sequence[tuple[int, str]] = (
    *((8, "<H"), (10, "<H"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<H"), (30, "<H")),
    *((34, "<H"), (42, "<I")),
)


def _with_field(content: bytes, rng: random.Random) -> bytes:
    offset, form = rng.choice(_FIELDS)
    most = 2 ** (8 * struct.calcsize(form)) - 1
    value = rng.choice((0, 1, 8, 99, most, most // 2, rng.randrange(most)))
    return _set(content, offset, struct.pack(form, value & most), local=rng.random() < 0.5)
