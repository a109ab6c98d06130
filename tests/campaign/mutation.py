"""Changes of good files: of bytes, of JSON, of YAML, of archives, of HDF5, of what is no file."""

import contextlib
import copy
import io
import json
import os
import pathlib
import random
import socket
import string
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import yaml

# These attack pages, terminals, tables and paths; no table is made for the long ones.
HOSTILE_TEXTS = (
    *("", " ", ".", "..", "/", "../../outside", "/etc/passwd", "a/b", "a\\b", "con", "name."),
    *("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'),
    *("=cmd|' /C calc'!A0", "@SUM(1)", "\x1b[2J\x1b[31m", "\x07", "a\nb", "a\r\nb", "a\x00b"),
    *("\u202eabc", "\ufeff", "\ud800", "x" * 300, "x" * 5000, "é" * 200, "[bold]", "[/]", "%s%n"),
    *("{0}", "{{7*7}}", "${HOME}", "nan", "inf", "None", "null", "true", "1e999", "-0", "0x10"),
    *("٣", "１"),
)
HOSTILE_NUMBERS = (
    *(0, 1, -1, 2, 3, 7, 8, 9, 16, 127, 128, 255, 256, 1000, 65535, 10**6),
    *(2**31 - 1, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63), 2**64, 10**30),
    *(0.5, -0.5, 0.0, -0.0, 0.999, 1e-45, 1e-30, 1e-8, 1e9, 1e30, 3.5e38, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
)
# Text that is hard to read as YAML, whatever it says.
_HARD_YAML = (
    *("a: &a [*a]", "a: " + "[" * 5000, "? [a, b]\n: c", "a: 1\na: 2", "%YAML 9.9\n---\na: 1"),
    *("!!python/object/apply:os.system ['touch outside']", "a: !!python/name:os.system"),
    *("--- a\n--- b", "a: " + "9" * 10_000, "a: 0x" + "f" * 300, "a: 1:" + "59:" * 100, "\ta: 1"),
    *("a: 2026-02-30", "a: |\n" + " x\n" * 50_000, "a: \x07", "a: '\\ud800'", "\ufeffa: 1"),
    *("<<: {a: 1}", "- a", "a", "\x93NUMPY", "\xff\xfea\0"),
    "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]),
    "k: &k {a: 1}\n" + "\n".join(f"k{n}: {{<<: [*k, *k, *k]}}" for n in range(2000)),
)


def hostile(path: str | pathlib.Path, content: bytes, rng: random.Random) -> bytes:
    """The content of a file of this name with something wrong in it, by what the file holds."""
    path = pathlib.PurePath(path)
    change = _FORMATS.get(path.name, _FORMATS.get(path.suffix, damaged))
    return damaged(content, rng) if rng.random() < 0.15 else change(content, rng)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The bytes broken off, repeated, or with some of them changed."""
    found = bytearray(content)
    kind = rng.choice(("cut", "bytes", "head", "words", "words", "removed", "inserted", "tail"))
    size = len(found)
    if size < 8:
        return rng.randbytes(rng.randrange(64))
    start = rng.randrange(size)
    stop = min(size, start + rng.choice((1, 4, 16, 256)))
    if kind == "cut":
        del found[start:]
    elif kind == "removed":
        del found[start:stop]
    elif kind == "inserted":
        found[start:start] = found[start:stop] * rng.choice((1, 3, 50))
    elif kind == "tail":
        found += rng.randbytes(rng.choice((1, 22, 1000)))
    elif kind == "words":
        for _ in range(rng.randint(1, 3)):
            place = 4 * rng.randrange(size // 4)
            (old,) = struct.unpack_from("<I", found, place)
            near = old + rng.choice((-4, -1, 1, 4, 64))
            others = (0, 1, 4, 2**32 - 1, 2**31 - 1, 2**31, size, rng.randrange(size), near, near)
            struct.pack_into("<I", found, place, rng.choice(others) & 0xFFFFFFFF)
    else:
        end = min(size, 400) if kind == "head" else size
        for _ in range(rng.randint(1, 6)):
            found[rng.randrange(end)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
    return bytes(found)


def hostile_value(old: Any, rng: random.Random) -> Any:
    """A value in the place of another one, often of its type."""
    if isinstance(old, bool):
        return rng.choice((not old, None, rng.choice(HOSTILE_NUMBERS), str(old)))
    if isinstance(old, str) and rng.random() < 0.6:
        return rng.choice((*HOSTILE_TEXTS, old + rng.choice(HOSTILE_TEXTS), old[: len(old) // 2]))
    if isinstance(old, int | float) and rng.random() < 0.7:
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


def changed_value(value: Any, rng: random.Random) -> Any:
    """A value of JSON with some of its parts changed, left out, doubled or exchanged."""
    found = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
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


def _places(container: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with every key or index."""
    keys = range(len(container)) if isinstance(container, list) else container
    for key in keys if isinstance(container, list | dict) else ():
        yield container, key
        yield from _places(container[key])


def changed_json(content: bytes, rng: random.Random) -> bytes:
    """A text of JSON with changed values, or that is nested deeply."""
    if rng.random() < 0.05:
        depth = rng.choice((500, 100_000))
        return b'{"kit": ' + b"[" * depth + b"]" * depth + b"}"
    values = json.loads(content)
    layers = values["config"].get("layers") if "config" in values else None
    if layers and rng.random() < 0.7:  # of one layer, as most of a model's text is about nothing
        layer = rng.choice(layers)
        layer.update(changed_value(layer, rng))
    else:
        values = changed_value(values, rng)
    return json.dumps(values).encode("utf-8", "replace")


def as_yaml(values: Any) -> bytes:
    """The text of some values."""
    text = yaml.safe_dump(values, allow_unicode=True, sort_keys=False)
    return text.encode("utf-8", "surrogatepass")


def _changed_yaml(content: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.2:
        hard = rng.choice(_HARD_YAML).encode("utf-8", "surrogatepass")
        return rng.choice((hard, content + b"\n" + hard))
    return as_yaml(changed_value(yaml.safe_load(content), rng))


def _changed_hdf5(content: bytes, rng: random.Random) -> bytes:
    """An array or the configuration changed, linked, outside, of a giant size."""
    import h5py
    import numpy as np

    path = pathlib.Path("changed.h5")
    path.write_bytes(content)
    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice([name for name in names if isinstance(file[name], h5py.Dataset)])
        shape = file[name].shape
        if "model_config" in file.attrs and rng.random() < 0.3:
            config = changed_json(file.attrs["model_config"], rng)
            file.attrs["model_config"] = config.decode()[:60_000]
        elif rng.random() < 0.15:
            file[name][...] = rng.choice((np.nan, np.inf, 0.0, 1e38))
        else:
            del file[name]
            outside = {"external": [("/etc/hostname", 0, 4)]}
            arrays = (
                *(((*shape, 2), "f4", {}), (shape, "c8", {}), ((2**40,), "f4", {})),
                *(((4,), "u1", outside), (None, None, {"data": "text"})),
            )
            links = (h5py.ExternalLink("/etc/hostname", "/"), h5py.SoftLink(f"/{name}"))
            other = rng.choice((None, *arrays, *links))
            if isinstance(other, tuple):
                file.create_dataset(name, *other[:2], **other[2])
            elif other is not None:
                file[name] = other
    found = path.read_bytes()
    path.unlink()
    return found


def _changed_metadata(content: bytes, rng: random.Random) -> bytes:
    """The configurations of a SavedModel, of which one is another."""
    from tf_keras.protobuf import saved_metadata_pb2

    metadata = saved_metadata_pb2.SavedMetadata()
    metadata.ParseFromString(content)
    node = rng.choice(metadata.nodes)
    try:
        config = changed_value(json.loads(node.metadata), rng)
        node.metadata = json.dumps(config)[:100_000]
    except ValueError:
        node.metadata = "{"
    return metadata.SerializeToString()


_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_CENTRAL, _LOCAL = b"PK\1\2", b"PK\3\4"
_HOSTILE_MEMBERS = (
    *("../outside", "/tmp/outside", "..\\outside", "C:\\outside", "a/../../outside", "con", "x/"),
    *("a\nb", "\x1b[2J", "x" * 5000, "é", "/", "./labels.txt", "labels.txt/"),
)
_COMMENTS = (b"x" * 60_000, _CENTRAL + b"\0" * 50, b"PK\5\6" + b"\0" * 18)
# Fields of the central header: method, CRC, both sizes, lengths of name and extra, offset.
_FIELDS: Sequence[tuple[int, str]] = (
    *((8, "<H"), (10, "<H"), (16, "<I"), (20, "<I"), (24, "<I"), (28, "<H"), (30, "<H")),
    *((34, "<H"), (42, "<I")),
)


def archive(members, *, method=zipfile.ZIP_STORED, comment=b"", linked=None) -> bytes:
    """A zip archive with these members, of which one may be a link to a file outside."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as written, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of two members of one name
        for name, content in members:
            info = zipfile.ZipInfo(name or "/")
            info.compress_type = method
            if name == linked:
                info.create_system, info.external_attr = 3, 0o120777 << 16
                content = b"/etc/hostname"
            written.writestr(info, content)
        written.comment = comment
    return stream.getvalue()


def members_of(content: bytes) -> dict[str, bytes]:
    """The members of a good archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def hostile_archive(content: bytes, rng: random.Random) -> bytes:
    """An archive with something wrong in it, or in one of its members."""
    members = members_of(content)
    names = sorted(members)
    # Where there is a configuration, it says the most.
    name = rng.choice([*names, *(["config.json"] * 3 if "config.json" in names else [])])
    return rng.choice(_ARCHIVE_CHANGES)(members, name, rng)


def _with_field(members: dict[str, bytes], name: str, rng: random.Random) -> bytes:
    offset, form = rng.choice(_FIELDS)
    most = 2 ** (8 * struct.calcsize(form)) - 1
    value = rng.choice((0, 1, 8, 99, most, most // 2, rng.randrange(most)))
    packed = struct.pack(form, value & most)
    return _set(archive(members.items()), offset, packed, local=rng.random() < 0.5)


def _set(content: bytes, offset: int, packed: bytes, *, local: bool = True) -> bytes:
    """A field of the first central header, and of the first local one, where it is 2 bytes less."""
    found = bytearray(content)
    for signature, shift in ((_CENTRAL, 0), *([(_LOCAL, -2)] if local else [])):
        place = found.find(signature)
        if place >= 0:
            place += offset + shift
            found[place : place + len(packed)] = packed
    return bytes(found)


def _changed_member(members: dict[str, bytes], name: str, rng: random.Random) -> bytes:
    return archive({**members, name: hostile(name, members[name], rng)}.items())


# What makes an archive of some members, the name of one of them, and a generator.
_ARCHIVE_CHANGES: Sequence[Callable[[dict[str, bytes], str, random.Random], bytes]] = (
    *(_changed_member, _changed_member, _changed_member, _with_field, _with_field),
    # One is missing, has a name that leads elsewhere, or is there twice.
    lambda members, name, rng: archive(item for item in members.items() if item[0] != name),
    lambda members, name, rng: archive(
        (rng.choice(_HOSTILE_MEMBERS) if member == name else member, content)
        for member, content in members.items()
    ),
    lambda members, name, rng: archive([*members.items(), (rng.choice(_HOSTILE_MEMBERS), b"out")]),
    lambda members, name, rng: archive(
        [*members.items(), (name, hostile(name, members[name], rng))]
    ),
    lambda members, name, rng: archive(
        [*members.items(), *((f"member {n}", b"") for n in range(rng.choice((100, 20_000))))]
    ),
    # One unpacks to many bytes.
    lambda members, name, rng: archive(
        {**members, name: b"\0" * rng.choice((2**20, 2**26))}.items(),
        method=rng.choice(_METHODS[1:3]),
    ),
    lambda members, name, rng: archive(members.items(), method=rng.choice(_METHODS)),
    lambda members, name, rng: archive(members.items(), comment=rng.choice(_COMMENTS)),
    lambda members, name, rng: archive(members.items(), linked=name),
    # The flag says that it is encrypted.
    lambda members, name, rng: _set(archive(members.items()), 8, struct.pack("<H", 1)),
)
_FORMATS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": changed_json,
    ".yaml": _changed_yaml,
    ".h5": _changed_hdf5,
    ".keras": hostile_archive,
    ".zip": hostile_archive,
    "keras_metadata.pb": _changed_metadata,
}


_LINKS = ("itself", "nowhere", "/etc", "/etc/hostname", "/dev/zero", "/dev/full")


def put_no_file(path: pathlib.Path, rng: random.Random) -> None:
    """Puts a pipe, a folder, a socket, a file that is shut, or a link in the place of a file."""
    kind = rng.choice(("pipe", "folder", "socket", "shut", *_LINKS))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):
            bound.bind(path.name[:50])  # the address of a socket is short
    elif kind == "shut":
        path.touch(0)
    else:
        path.symlink_to(path.name if kind == "itself" else kind)
