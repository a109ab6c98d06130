"""A wheel holds the package whole, and nothing else; prints what it holds.

    python tests/versions/wheel.py dist/sat_tf-0.2.0-py3-none-any.whl

One line for each folder; the status is 1 if anything is missing or too much.
"""

import collections
import pathlib
import sys
import zipfile

_PACKAGE = pathlib.Path(__file__).parents[2] / "sat_tf"
_METADATA = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "LICENSE"}


def of_package() -> set[str]:
    """The names that the package's files have in a wheel."""
    return {
        f"sat_tf/{path.relative_to(_PACKAGE).as_posix()}"
        for pattern in ("**/*", "training/configs/**/*")  # a link to a folder is not followed
        for path in _PACKAGE.glob(pattern)
        if path.is_file() and path.suffix != ".pyc"
    }


def problems(names: list[str]) -> list[str]:
    """Names that are missing from those in a wheel, and names that should not be there."""
    expected = of_package()
    own = {name for name in names if ".dist-info/" not in name}
    about = {name.rsplit("/", 1)[1] for name in set(names) - own}
    return [
        *(f"{name}: missing" for name in sorted(expected - own)),
        *(f"{name}: is not the package's" for name in sorted(own - expected)),
        *(f"{name}: missing" for name in sorted(_METADATA - about)),
        *(f"{name}: is no metadata" for name in sorted(about - _METADATA)),
    ]


def main(path: str) -> None:
    """Prints the folders of a wheel with their files and bytes, and its problems."""
    folders: dict[str, list[int]] = collections.defaultdict(list)
    with zipfile.ZipFile(path) as wheel:
        members = [one for one in wheel.infolist() if not one.is_dir()]
    for one in members:
        folders["/".join(one.filename.split("/")[:-1][:2])].append(one.file_size)
    for folder, sizes in sorted(folders.items()):
        print(f"{len(sizes):4} files {sum(sizes):9,} bytes  {folder}")
    print(f"{len(members):4} files {sum(one.file_size for one in members):9,} bytes in all")
    found = problems([one.filename for one in members])
    sys.exit("\n".join(found) or None)


if __name__ == "__main__":
    main(*sys.argv[1:])
