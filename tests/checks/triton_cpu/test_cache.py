"""Built variants on disk: found again, whole or not at all, for one user, within bounds."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import warnings
from pathlib import Path

import pytest

from mrv2.checks.triton_cpu import cache as module
from mrv2.checks.triton_cpu.cache import Cache, NothingKept, UnsafeCache, folder


@pytest.fixture
def library(tmp_path):
    file = tmp_path / "built.so"
    file.write_bytes(b"machine code" * 100)
    return file


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_the_folder():
    assert folder({"MRV2_CACHE_DIR": "/c"}) == Path("/c/triton_cpu")
    assert folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/mrv2/triton_cpu")
    assert folder({"HOME": "/h"}) == Path("/h/.cache/mrv2/triton_cpu")
    assert folder({}) is None


@pytest.mark.filterwarnings("error::mrv2.checks.triton_cpu.cache.NothingKept")
def test_an_entry_is_found_again(cache, library):
    assert cache.find("key") is None
    cache.add("key", library, {"sites": [1, 2]})
    entry = Cache(cache.folder).find("key")
    assert entry.library.read_bytes() == library.read_bytes()
    assert entry.facts == {"sites": [1, 2]}
    assert cache.find("other") is None


def test_only_json_and_machine_code_are_kept(cache, library):
    cache.add("key", library, {})
    assert sorted(file.suffix for file in cache.folder.iterdir()) == [".json", ".so"]
    json.loads((cache.folder / "key.json").read_text())


def test_the_folder_is_for_its_owner_alone(cache):
    assert cache.folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(cache, mode):
    cache.folder.chmod(mode)
    with pytest.raises(UnsafeCache, match="writable by others"):
        Cache(cache.folder)


def test_a_folder_that_others_may_only_read_is_taken(cache):
    cache.folder.chmod(0o755)
    Cache(cache.folder)


def test_a_folder_of_another_user_is_refused(cache, monkeypatch):
    monkeypatch.setattr(module.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnsafeCache, match="belongs to another user"):
        Cache(cache.folder)


@pytest.mark.parametrize("suffix", [".json", ".so"])
@pytest.mark.parametrize("damage", [b"", b"half", None], ids=["empty", "overwritten", "gone"])
def test_a_damaged_entry_is_absent_and_can_be_built_again(cache, library, suffix, damage):
    cache.add("key", library, {})
    (file,) = cache.folder.glob(f"*{suffix}")
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    assert cache.find("key") is None
    cache.add("key", library, {})
    assert cache.find("key").library.read_bytes() == library.read_bytes()


def test_one_changed_byte_is_noticed(cache, library):
    entry = cache.add("key", library, {})
    content = bytearray(entry.library.read_bytes())
    content[17] ^= 1
    entry.library.write_bytes(content)
    assert cache.find("key") is None


@pytest.mark.parametrize("damage", [{"facts": {}}, {"facts": {"sites": []}}, {"facts": None}, {"seal": "0"}])
def test_changed_facts_are_noticed(cache, library, damage):
    cache.add("key", library, {"sites": [1, 2]})
    (place,) = cache.folder.glob("*.json")
    whole = json.loads(place.read_text())
    place.write_text(json.dumps(whole))
    assert cache.find("key").facts == {"sites": [1, 2]}
    place.write_text(json.dumps({**whole, **damage}))
    assert cache.find("key") is None


def test_an_entry_of_another_key_is_none(cache, library):
    cache.add("key", library, {})
    (place,) = cache.folder.glob("*.json")
    place.rename(cache.folder / "other.json")
    assert cache.find("other") is None


@pytest.mark.parametrize(("mode", "refused"), [(0o777, True), (0o1777, False), (0o755, False)])
def test_a_folder_that_others_may_replace_is_refused(tmp_path, mode, refused):
    parent = tmp_path / "parent"
    (parent / "between").mkdir(parents=True)
    parent.chmod(mode)
    with pytest.raises(UnsafeCache, match="in its place") if refused else contextlib.nullcontext():
        Cache(parent / "between" / "triton_cpu")


@pytest.mark.parametrize("facts", ['{"digest": 5, "facts": {}}', "[]", '{"facts": {}}'])
def test_other_peoples_json_is_no_entry(cache, facts):
    (cache.folder / "key.json").write_text(facts)
    assert cache.find("key") is None


def test_the_folder_stays_within_its_bound(tmp_path, library):
    size = len(library.read_bytes())
    cache = Cache(tmp_path / "cache", limit=10 * size)
    for number in range(30):
        library.write_bytes(number.to_bytes(4, "little") * (size // 4))
        cache.add(f"key{number}", library, {})
        assert sum(file.stat().st_size for file in cache.folder.iterdir()) <= cache.limit
    assert cache.find("key29") is not None
    assert cache.find("key0") is None


def test_what_is_used_stays(tmp_path, library):
    size = len(library.read_bytes())
    cache = Cache(tmp_path / "cache", limit=10 * size)
    for number in range(8):
        library.write_bytes(number.to_bytes(4, "little") * (size // 4))
        entry = cache.add(f"key{number}", library, {})
        for file in (entry.library, cache.folder / f"key{number}.json"):
            os.utime(file, (number, number))
    cache.find("key0")
    for number in range(8, 12):
        library.write_bytes(number.to_bytes(4, "little") * (size // 4))
        cache.add(f"key{number}", library, {})
    assert cache.find("key0") is not None
    assert cache.find("key1") is None


def test_a_folder_that_takes_no_files_does_without(tmp_path, library, monkeypatch):
    cache = Cache(tmp_path / "cache")

    def refuse(**options):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(module.tempfile, "mkstemp", refuse)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert cache.add("key", library, {}) is None
        assert cache.add("other", library, {}) is None
    assert [warning.category for warning in said] == [NothingKept]
    assert f"{cache.folder} takes no files (read-only file system)" in str(said[0].message)
    assert cache.find("key") is None


def test_a_place_where_no_folder_can_be_does_without(tmp_path, library):
    (tmp_path / "file").write_text("")
    with pytest.warns(NothingKept, match="takes no files .*MRV2_CACHE_DIR"):
        cache = Cache(tmp_path / "file" / "cache")
    assert cache.add("key", library, {}) is None
    assert cache.find("key") is None


def test_a_file_that_another_process_takes_away_meanwhile_is_no_obstacle(cache, library):
    (cache.folder / "gone.new").symlink_to("nowhere")
    assert cache.add("key", library, {}) is not None


def _race(place: Path, number: int, start) -> None:
    cache = Cache(place)
    library = place.parent / f"built{number}.so"
    library.write_bytes(bytes([number]) * 50_000)
    start.wait()
    for _ in range(40):
        cache.add("key", library, {"number": number})
        entry = cache.find("key")
        # Others write the same entry all the time: it may be any of theirs, but it is one, and whole.
        if entry is not None and entry.library.read_bytes() != bytes([entry.facts["number"]]) * 50_000:
            raise SystemExit(1)
        if entry is None:
            raise SystemExit(2)


def test_many_processes_write_one_entry(tmp_path):
    context = multiprocessing.get_context("fork")
    start = context.Barrier(4)
    place = tmp_path / "cache"
    workers = [context.Process(target=_race, args=(place, number, start)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert not list(place.glob("*.new"))
