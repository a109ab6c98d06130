"""The making of the Arm root, with stand-ins for the tools: no network."""

import os
import stat

import pytest

from sat_tf.export.device import arm_root
from sat_tf.export.device.arm_root import find_root, make_root, root_folder


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
    assert root_folder() == cache / "sat-tf" / "arm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert str(root_folder()) == "/home/somebody/.cache/sat-tf/arm"


@pytest.mark.parametrize("make", [make_root, find_root])
@pytest.mark.parametrize("name", ["Darwin", "Windows"])
def test_elsewhere_than_on_linux_the_kit_is_offered(cache, monkeypatch, name, make):
    monkeypatch.setattr("platform.system", lambda: name)
    with pytest.raises(ValueError, match=rf"{name}, expected Linux, .* use Linux, .*--kit kit.zip"):
        make()
    assert not cache.exists()


def test_without_debians_tools_the_kit_is_offered(cache, tools):
    tools(dpkg="")
    with pytest.raises(ValueError, match=r"without apt-get and dpkg-deb, .*--kit kit.zip"):
        make_root()
    assert not cache.exists()


def _left(cache):
    return sorted(path.name for path in (cache / "sat-tf").iterdir())


def test_without_a_network_nothing_is_left(cache, tools):
    failing = "echo 'E: Failed to fetch x  Temporary failure resolving y' >&2; exit 100"
    tools(apt_get=failing, dpkg_deb="", dpkg="echo amd64")
    with pytest.raises(ValueError, match=r"reading the lists .*Temporary failure .*a network"):
        make_root()
    assert _left(cache) == []


def test_packages_without_python_are_named(cache, tools):
    tools(apt_get="", dpkg_deb="", dpkg="echo amd64")
    with pytest.raises(ValueError, match="packages without Python 3"):
        make_root()
    assert _left(cache) == []


def test_a_full_disk_is_told_before_anything_is_downloaded(cache, tools, monkeypatch):
    tools(apt_get="exit 1", dpkg_deb="", dpkg="echo amd64")
    monkeypatch.setattr(arm_root.shutil, "disk_usage", lambda _: type("U", (), {"free": 1e6}))
    with pytest.raises(ValueError, match=r"received 1 MB of free space, expected 800 MB"):
        make_root()
    assert _left(cache) == []


def test_a_cache_that_cannot_be_made_is_named(tmp_path, tools, monkeypatch):
    tools(apt_get="", dpkg_deb="", dpkg="echo amd64")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"Not a directory .*name another place"):
        make_root()


def test_one_that_is_broken_off_leaves_the_older_one(cache, tools, monkeypatch):
    tools(apt_get="", dpkg_deb="", dpkg="echo amd64")
    older = cache / "sat-tf" / "arm"
    older.mkdir(parents=True)
    (older / "root.json").write_text("older")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(arm_root, "_unpack_system", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_root()
    assert _left(cache) == ["arm"]
    assert (older / "root.json").read_text() == "older"


def test_what_a_killed_run_has_left_is_removed_after_a_day(cache, tools):
    tools(apt_get="exit 1", dpkg_deb="", dpkg="echo amd64")
    for name, age in ((".arm_old", 2 * 86_400), (".arm_new", 60)):
        (cache / "sat-tf" / name).mkdir(parents=True)
        then = (cache / "sat-tf" / name).stat().st_mtime - age
        os.utime(cache / "sat-tf" / name, (then, then))
    with pytest.raises(ValueError, match="failed"):
        make_root()
    assert _left(cache) == [".arm_new"]
