"""Real git: what a person may name wrongly, and what a stranger may have put into a repository."""

# Names are bytes in what git hashes.
# ruff: noqa: PTH115, PTH118
from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from perfgate.errors import PerfgateError
from perfgate.source import trees
from perfgate.source.repository import Repository
from perfgate.source.trees import object_hash
from perfgate.store.removal import remove_tree
from tests.standin.repository import GIT_ENVIRONMENT


def tree_hash(root: Path, submodules: Mapping[bytes, str] | None = None, length: int = 40) -> str:
    """Git's name of the tree that a folder holds, computed from the files themselves."""
    return _hash_folder(os.fsencode(root), b"", submodules or {}, length)


def _hash_folder(root: bytes, below: bytes, submodules: Mapping[bytes, str], length: int) -> str:
    lines: list[tuple[bytes, bytes]] = []
    with os.scandir(os.path.join(root, below)) as found:
        for entry in found:
            path = os.path.join(below, entry.name)
            if entry.is_symlink():
                mode, oid = b"120000", object_hash("blob", os.readlink(entry.path), length)
            elif path in submodules:
                mode, oid = b"160000", submodules[path]
            elif entry.is_dir(follow_symlinks=False):
                mode, oid = b"40000", _hash_folder(root, path, submodules, length)
            else:
                mode = b"100755" if entry.stat().st_mode & 0o100 else b"100644"
                oid = object_hash("blob", Path(os.fsdecode(entry.path)).read_bytes(), length)
            order = entry.name + b"/" if mode == b"40000" else entry.name
            lines.append((order, mode + b" " + entry.name + b"\0" + bytes.fromhex(oid)))
    return object_hash("tree", b"".join(line for _, line in sorted(lines)), length)


class Lab:
    """A repository to experiment on."""

    def __init__(self, path: Path, *options: str) -> None:
        self.path = path
        self.path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main", *options)

    def git(self, *arguments: str, stdin: bytes | None = None) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            input=stdin,
            env={**os.environ, **GIT_ENVIRONMENT},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(self, files: dict[str, str | bytes], title: str = "A change") -> str:
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", title)
        return self.git("rev-parse", "HEAD")

    def put(self, kind: str, content: bytes) -> str:
        """Writes an object that git itself would refuse to make."""
        raw = f"{kind} {len(content)}\0".encode() + content
        oid = hashlib.sha1(raw).hexdigest()
        path = self.path / ".git" / "objects" / oid[:2] / oid[2:]
        path.parent.mkdir(exist_ok=True)
        if not path.exists():
            path.write_bytes(zlib.compress(raw))
        return oid

    def put_commit(self, tree: str) -> str:
        return self.put("commit", f"tree {tree}\nauthor A <a> 1 +0000\ncommitter A <a> 1 +0000\n\nT\n".encode())


SGLANG = {"python/sglang/__init__.py": "", "python/pyproject.toml": "[project]\nname='sglang'\ndependencies=[]\n"}


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path / "repo")
    made.commit(SGLANG, "Base")
    return made


def _error(call: object, *arguments: object) -> str:
    assert callable(call)
    with pytest.raises(PerfgateError) as error:
        call(*arguments)
    text = str(error.value)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------------------------------------------- names


def test_a_commit_is_named_once_and_then_by_its_sha(lab: Lab) -> None:
    head = lab.commit({"a": "1"}, "Add \x1b[31ma\x07 file \u202e<script>")
    lab.git("tag", "-a", "v1", "-m", "x")
    repository = Repository(lab.path)
    commit = repository.resolve("v1")
    assert commit.sha == head
    assert commit.tree == lab.git("rev-parse", "HEAD^{tree}")
    assert commit.title == "Add a⟨U+0007⟩ file ⟨U+202E⟩<script>"
    assert repository.resolve(head[:10]) == commit
    assert repository.resolve("HEAD~0") == commit


def test_unknown_names_come_with_a_remedy(lab: Lab) -> None:
    lab.git("branch", "feature/eagle")
    lab.git("update-ref", "refs/remotes/origin/topic", "HEAD")
    repository = Repository(lab.path)
    assert "did you mean feature/eagle?" in _error(repository.resolve, "feature/eagel")
    assert "did you mean origin/topic?" in _error(repository.resolve, "topic")
    assert "fetch origin " + "d" * 40 in _error(repository.resolve, "d" * 40)
    assert "empty name" in _error(repository.resolve, " ")
    assert "no commit is called" in _error(repository.resolve, "main:python/sglang")  # a tree, not a commit
    for hostile in (
        "--help",
        "--output=/x",
        "-",
        "a\nb",
        "a\0b",
        "\ud800",
        "x" * 100_000,
        "main..main",
        "\x1b[31m",
    ):
        assert "no commit is called" in _error(repository.resolve, hostile)[:200]


def test_missing_and_foreign_folders(tmp_path: Path) -> None:
    assert "no such folder" in _error(Repository, tmp_path / "nowhere")
    assert "not a git repository" in _error(Repository, tmp_path)
    (tmp_path / "file").write_text("")
    assert "no such folder" in _error(Repository, tmp_path / "file")
    (tmp_path / ".git").write_text("gitdir: /nonexistent\n")
    assert "not a git repository" in _error(Repository, tmp_path)


def test_bare_repositories_linked_worktrees_and_subfolders(lab: Lab, tmp_path: Path) -> None:
    sha = lab.git("rev-parse", "HEAD")
    lab.git("worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    subprocess.run(["git", "clone", "-q", "--bare", str(lab.path), str(tmp_path / "bare")], check=True)
    for path in (tmp_path / "linked", tmp_path / "bare", lab.path / "python" / "sglang", lab.path / ".git"):
        assert Repository(path).resolve("main").sha == sha


def test_a_repository_of_another_owner_is_read(lab: Lab) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    for path in (lab.path, *lab.path.rglob("*")):
        os.chown(path, 12345, 12345)
    assert Repository(lab.path).resolve("main").title == "Base"


def test_empty_repository(tmp_path: Path) -> None:
    repository = Repository(Lab(tmp_path / "empty").path)
    assert "no commit is called 'HEAD'" in _error(repository.resolve, "HEAD")
    assert "name the base with --base" in _error(repository.default_branch)


# ------------------------------------------------------------------------------------------------- relations


def test_default_branch(lab: Lab) -> None:
    repository = Repository(lab.path)
    assert repository.default_branch() == "refs/heads/main"
    lab.git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert repository.default_branch() == "refs/remotes/origin/main"
    lab.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    lab.git("update-ref", "refs/remotes/origin/trunk", "HEAD")
    assert repository.default_branch() == "refs/remotes/origin/trunk"
    lab.git("update-ref", "-d", "refs/remotes/origin/trunk")  # renamed since; origin/HEAD dangles
    assert repository.default_branch() == "refs/remotes/origin/main"
    lab.git("tag", "main", lab.commit({"a": "1"}))  # a tag does not stand for the branch
    assert repository.default_branch() == "refs/remotes/origin/main"


def test_the_head_of_a_bare_clone_is_its_default_branch(lab: Lab, tmp_path: Path) -> None:
    lab.git("checkout", "-q", "-b", "develop")
    subprocess.run(["git", "clone", "-q", "--bare", str(lab.path), str(tmp_path / "bare.git")], check=True)
    assert Repository(tmp_path / "bare.git").default_branch() == "refs/heads/develop"
    assert Repository(lab.path).default_branch() == "refs/heads/main"  # of a checkout it is what somebody works on


def test_a_tag_that_hides_a_branch_is_told(lab: Lab) -> None:
    repository = Repository(lab.path)
    assert repository.also_a_branch("main") == ""
    tagged = lab.git("rev-parse", "HEAD")
    lab.git("tag", "main")
    assert repository.also_a_branch("main") == ""  # the same commit
    branch = lab.commit({"a": "1"})
    told = repository.also_a_branch("main")
    assert tagged[:12] in told
    assert branch[:12] in told
    assert "refs/heads/main" in told


def test_merge_base(lab: Lab) -> None:
    base = lab.git("rev-parse", "HEAD")
    lab.git("checkout", "-q", "-b", "change")
    head = lab.commit({"a": "1"})
    lab.git("checkout", "-q", "main")
    main = lab.commit({"b": "1"})
    assert Repository(lab.path).merge_base(main, head).sha == base


def test_shallow_clone_without_the_merge_base(lab: Lab, tmp_path: Path) -> None:
    lab.git("checkout", "-q", "-b", "change")
    head = lab.commit({"a": "1"})
    lab.git("checkout", "-q", "main")
    main = lab.commit({"b": "1"})
    clone = tmp_path / "clone"
    command = ["git", "clone", "-q", "--depth", "1", "--no-single-branch", f"file://{lab.path}", str(clone)]
    subprocess.run(command, check=True)
    text = _error(Repository(clone).merge_base, main, head)
    assert "shallow" in text
    assert "fetch --unshallow" in text
    subprocess.run(["git", "-C", str(clone), "fetch", "-q", "--unshallow"], check=True)
    assert Repository(clone).merge_base(main, head).title == "Base"


def test_replaced_and_grafted_history_is_not_believed(lab: Lab) -> None:
    base = lab.git("rev-parse", "HEAD")
    head = lab.commit({"a": "1"})
    lab.git("replace", head, base)
    assert Repository(lab.path).resolve(head).title == "A change"


# ----------------------------------------------------------------------------------------------------- files


def test_read_file(lab: Lab) -> None:
    (lab.path / "link").symlink_to("python/pyproject.toml")
    sha = lab.commit({"odd *[a]": b"\0\xff\r\n", "big": b"x" * (4 * 2**20 + 1)})
    repository = Repository(lab.path)
    assert repository.read_file(sha, "odd *[a]") == b"\0\xff\r\n"
    assert repository.read_file(sha, "odd *") is None
    assert repository.read_file(sha, "python") is None
    assert repository.read_file(sha, "link") is None
    assert "outside" in _error(repository.read_file, sha, "../etc/passwd")
    assert repository.read_file(sha, ":(glob)**") is None
    assert "too many" in _error(repository.read_file, sha, "big")


def test_object_at_is_equal_for_equal_content(lab: Lab) -> None:
    first = lab.commit({"a/x": "1", "b/x": "1"})
    second = lab.commit({"a/x": "2"})
    repository = Repository(lab.path)
    assert repository.object_at(first, "a") == repository.object_at(first, "b/")
    assert repository.object_at(first, "a") != repository.object_at(second, "a")
    assert repository.object_at(first, "c") is None


def test_changed_paths_with_renames_and_odd_names(lab: Lab) -> None:
    base = lab.commit({"old name": "same\n" * 50, "gone": "1"})
    lab.git("mv", "old name", "new\nname")
    lab.git("rm", "-q", "gone")
    odd = os.fsdecode(b"by\xfftes")
    head = lab.commit({odd: "1", "-rf": "1", 'quo"te': "1"})
    expected = {"old name", "new\nname", "gone", "by\\xfftes", "-rf", 'quo"te'}
    assert set(Repository(lab.path).changed_paths(base, head)) == expected


def test_only_sglang_trees_are_accepted(lab: Lab) -> None:
    repository = Repository(lab.path)
    repository.check_sglang(lab.git("rev-parse", "HEAD"))
    lab.git("rm", "-q", "-r", "python/sglang")
    assert "no python/sglang" in _error(repository.check_sglang, lab.commit({"python/sglang": "a file"}))
    lab.git("rm", "-q", "-r", ".")
    text = _error(repository.check_sglang, lab.commit({"other": ""}))
    assert "no python/sglang and no python/pyproject.toml" in text


# ----------------------------------------------------------------------------------------------------- trees


def test_files_are_exactly_those_of_the_commit(lab: Lab, tmp_path: Path) -> None:
    odd = "text eol=crlf ident export-subst working-tree-encoding=UTF-16"
    attributes = f"*.txt {odd}\nhidden export-ignore\n* filter=evil\n"
    lab.commit({".gitattributes": attributes})
    (lab.path / "run.sh").write_text("#!/bin/sh\n")
    (lab.path / "run.sh").chmod(0o755)
    (lab.path / "inside").symlink_to("python")
    (lab.path / "outside").symlink_to("/etc/passwd")
    names = {"a.txt": b"$Id$ $Format:%H$\n\0", "hidden": "1", os.fsdecode(b"n\xffame"): "1", "empty": "", "-rf": "x"}
    blobs = [
        (name, lab.git("hash-object", "-w", "--no-filters", "--stdin", stdin=_bytes(content)))
        for name, content in names.items()
    ]
    for name, blob in blobs:
        lab.git("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    lab.git("add", "run.sh", "inside", "outside")
    lab.git("update-index", "--add", "--cacheinfo", f"160000,{'5' * 40},sub/module")
    lab.git("commit", "-q", "-m", "odd files")
    lab.git("config", "filter.evil.smudge", f"touch {tmp_path}/ran; cat")
    lab.git("config", "filter.evil.process", f"touch {tmp_path}/ran")
    lab.git("config", "core.autocrlf", "true")

    repository = Repository(lab.path)
    commit = repository.resolve("HEAD")
    with repository.worktree(commit, tmp_path / "trees").hold as held:
        place = held.entry
        assert place.name == commit.tree
        assert tree_hash(place, {b"sub/module": "5" * 40}) == commit.tree
        assert (place / "a.txt").read_bytes() == b"$Id$ $Format:%H$\n\0"
        assert (place / "sub" / "module").is_dir()
        assert (place / "outside").readlink() == Path("/etc/passwd")
        assert stat.S_IMODE((place / "run.sh").stat().st_mode) == 0o555
        assert stat.S_IMODE((place / "a.txt").stat().st_mode) == 0o444
        assert stat.S_IMODE((place / "python").stat().st_mode) == 0o555
    assert not (tmp_path / "ran").exists()
    assert not list((lab.path / ".git").glob("worktrees/*"))


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content


def test_a_tree_is_made_once_and_again_when_it_was_changed(lab: Lab, tmp_path: Path) -> None:
    repository = Repository(lab.path)
    commit = repository.resolve("main")
    first = repository.worktree(commit, tmp_path / "trees")
    first.hold.release()
    second = repository.worktree(commit, tmp_path / "trees")
    second.hold.release()
    assert (first.cached, second.cached) == (False, True)
    victim = first.path / "python" / "pyproject.toml"
    times = victim.stat()
    victim.chmod(0o644)
    victim.write_bytes(b"X" + victim.read_bytes()[1:])
    os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
    victim.chmod(0o444)
    third = repository.worktree(commit, tmp_path / "trees")
    third.hold.release()
    assert not third.cached
    assert tree_hash(third.path) == commit.tree


def test_config_of_the_repository_runs_nothing(lab: Lab, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook = lab.path / ".git" / "hooks" / "post-checkout"
    for path in (hook, hook.with_name("reference-transaction"), hook.with_name("post-index-change"), tmp_path / "cmd"):
        path.write_text(f"#!/bin/sh\ntouch {ran}\nexit 0\n")
        path.chmod(0o755)
    for key in (
        *(
            "core.fsmonitor",
            "core.pager",
            "core.sshCommand",
            "core.editor",
            "diff.external",
            "core.alternateRefsCommand",
        ),
        *("gpg.program", "core.askPass", "credential.helper", "uploadpack.packObjectsHook", "diff.x.textconv"),
    ):
        lab.git("config", key, str(tmp_path / "cmd"))
    lab.git("config", "log.showSignature", "true")
    lab.git("config", "core.hooksPath", str(hook.parent))
    base = lab.git("rev-parse", "HEAD")
    ran.unlink(missing_ok=True)
    repository = Repository(lab.path)
    commit = repository.resolve("HEAD")
    repository.changed_paths(base, base)
    repository.merge_base(base, base)
    repository.check_sglang(base)
    repository.default_branch()
    repository.worktree(commit, tmp_path / "trees").hold.release()
    assert not ran.exists()


@pytest.mark.parametrize("kept", ["blob:none", "tree:0"])
def test_what_a_partial_clone_lacks_is_told_with_the_remedy(lab: Lab, tmp_path: Path, kept: str) -> None:
    """Git's first line is a hint or a warning; a treeless clone cannot even say what was changed."""
    base = lab.git("rev-parse", "HEAD")
    head = lab.commit({"python/pyproject.toml": "[project]\nname='sglang'\ndependencies=['a']\n"})
    lab.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    command = ["git", "clone", "-q", "--no-checkout", f"--filter={kept}", f"file://{lab.path}", str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    (clone / ".git" / "info").mkdir(exist_ok=True)
    (clone / ".git" / "info" / "grafts").write_text(f"{head}\n")  # git then begins with a hint of nine lines
    repository = Repository(clone)

    def gate() -> None:
        paths = repository.changed_paths(base, head)
        assert repository.read_both(base, head, paths[0])[1]

    text = _error(gate)
    assert "hint" not in text
    assert "the clone is partial" in text
    assert "--refetch --no-filter" in text


def test_a_partial_clone_does_not_fetch_in_mid_run(lab: Lab, tmp_path: Path) -> None:
    lab.git("config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "partial"
    command = ["git", "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{lab.path}", str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    repository = Repository(clone)
    text = _error(repository.worktree, repository.resolve("HEAD"), tmp_path / "trees")
    assert "--refetch" in text
    assert not [path for path in (tmp_path / "trees").iterdir() if not path.name.endswith(".lock")]


def _tree(*entries: tuple[str, bytes, str]) -> bytes:
    return b"".join(mode.encode() + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in entries)


def test_hand_made_trees_cannot_lead_out(lab: Lab, tmp_path: Path) -> None:
    blob = lab.put("blob", b"evil")
    link = lab.put("blob", str(tmp_path / "outside").encode())
    inner = lab.put("tree", _tree(("100644", b"x", blob)))
    (tmp_path / "outside").mkdir()
    repository = Repository(lab.path)
    for tree in (
        _tree(("100644", b"../escaped", blob)),
        _tree(("40000", b"..", inner)),
        _tree(("40000", b".git", inner)),
        _tree(("120000", b"a", link), ("40000", b"a", inner)),
    ):
        commit = repository.resolve(lab.put_commit(lab.put("tree", tree)))
        _error(repository.worktree, commit, tmp_path / "trees")
    assert not list((tmp_path / "outside").iterdir())
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "trees" / "escaped").exists()


def test_a_tree_that_explodes_is_refused(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_FILES", 5000)
    oid = lab.put("blob", b"x")
    tree = lab.put("tree", _tree(*(("100644", b"f%d" % n, oid) for n in range(10))))
    for _ in range(8):
        tree = lab.put("tree", _tree(*(("40000", b"d%d" % n, tree) for n in range(10))))
    repository = Repository(lab.path)
    text = _error(repository.worktree, repository.resolve(lab.put_commit(tree)), tmp_path / "trees")
    assert "larger than" in text


def test_a_damaged_blob_is_noticed(lab: Lab, tmp_path: Path) -> None:
    repository = Repository(lab.path)
    commit = repository.resolve("HEAD")
    oid = repository.object_at(commit.sha, "python/pyproject.toml")
    assert oid
    path = lab.path / ".git" / "objects" / oid[:2] / oid[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob 3\0abc"))
    assert "git fsck" in _error(repository.worktree, commit, tmp_path / "trees")


def test_sha256_repositories(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "repo", "--object-format=sha256")
    lab.commit(SGLANG)
    repository = Repository(lab.path)
    commit = repository.resolve("main")
    tree = repository.worktree(commit, tmp_path / "trees")
    assert len(commit.sha) == 64
    assert tree_hash(tree.path, length=64) == commit.tree
    tree.hold.release()
    remove_tree(tree.path)
    assert not tree.path.exists()
