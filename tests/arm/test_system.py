"""The making of the Arm system, with stand-ins for the tools: no network."""

import stat

import pytest

from tests.arm import system
from tests.arm.system import main, make_system, system_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    found = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(found))
    return found


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Makes shell scripts the only tools there are."""

    def make(**scripts):
        folder = tmp_path / "tools"
        folder.mkdir()
        for name, script in scripts.items():
            path = folder / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))

    return make


def test_it_is_in_the_users_cache(cache, monkeypatch):
    assert system_folder() == cache / "sat-tf" / "arm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(system_folder()) == "/home/somebody/.cache/sat-tf/arm"


def test_without_debians_tools_nothing_is_made(cache, tools, capsys):
    tools(dpkg="")
    assert main([]) == 2
    assert "without apt-get and dpkg-deb" in capsys.readouterr().err
    assert not cache.exists()


@pytest.mark.parametrize(
    ("apt_get", "message"),
    [
        (
            "echo 'E: Failed to fetch x  Temporary failure resolving y' >&2; exit 100",
            r"reading the lists .*Temporary failure .*a network",
        ),
        ("", "packages without Python 3"),
    ],
)
def test_what_fails_is_named_and_leaves_nothing(apt_get, message, cache, tools):
    tools(apt_get=apt_get, dpkg_deb="", dpkg="echo amd64")
    with pytest.raises(ValueError, match=message):
        make_system()
    assert list((cache / "sat-tf").iterdir()) == []


def test_one_that_is_broken_off_leaves_the_older_one(cache, tools, monkeypatch):
    tools(apt_get="", dpkg_deb="", dpkg="echo amd64")
    older = cache / "sat-tf" / "arm"
    older.mkdir(parents=True)
    (older / "root.json").write_text("older")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(system, "_unpack_system", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_system()
    assert [path.name for path in (cache / "sat-tf").iterdir()] == ["arm"]
    assert (older / "root.json").read_text() == "older"
