"""Checks that the unmodified client of the model hub accepts the hub of the tests, and that it gets the same files as
neptune-edge and the digest of neptune-cloud. Run by hack/test-hub.sh."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

url, token, edge, cloud = sys.argv[1:]
home = tempfile.mkdtemp()
os.environ.update({"HF_ENDPOINT": url, "HF_HOME": home, "HF_HUB_DISABLE_TELEMETRY": "1"})

from huggingface_hub import HfApi, hf_hub_download, snapshot_download  # noqa: E402
from huggingface_hub.errors import (  # noqa: E402
    EntryNotFoundError,
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

ENVIRONMENT = {"PATH": os.environ["PATH"], "HF_ENDPOINT": url, "NEPTUNE_ALLOW_ADDRESS": "127.0.0.0/8"}


def listing(folder):
    """The text whose SHA-256 is the digest of a set of files."""
    paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    lines = [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths]
    return "".join(f"{digest}  {path}\n" for path, digest in sorted(lines, key=lambda line: line[0].encode()))


def run(program, *arguments, more=None):
    environment = ENVIRONMENT | (more or {})
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def equal(name, actual, expected):
    assert actual == expected, f"{name}: {actual!r} instead of {expected!r}"
    print(f"ok   {name}")


def refused(name, error, call):
    try:
        call()
    except error:
        print(f"ok   {name}: {error.__name__}")
        return
    raise AssertionError(f"{name}: no {error.__name__}")


api = HfApi()
commit = api.model_info("org/model", revision="v1").sha
equal("files of a revision", sorted(api.list_repo_files("org/model", revision="v1")),
      ["README.md", "config.json", "onnx/model.bin", "onnx/names of classes.txt"])
for revision, patterns in [("v1", ["config.json", "onnx/*"]), ("main", ["**"])]:
    theirs = tempfile.mkdtemp()
    snapshot_download("org/model", revision=revision, local_dir=theirs,
                      allow_patterns=[pattern.replace("**", "*") for pattern in patterns],
                      ignore_patterns=[".cache/*"])
    subprocess.run(["rm", "-rf", f"{theirs}/.cache"], check=True)
    ours = f"{tempfile.mkdtemp()}/model"
    query = "&".join(f"files={pattern}" for pattern in patterns)
    run(edge, "fetch", "--url", f"hf://org/model@{revision}?{query}", "--output", ours)
    equal(f"files of {revision} {patterns}", listing(ours), listing(theirs))
    flags = [part for pattern in patterns for part in ("--files", pattern)]
    manifest = run(cloud, "resolve", f"hf://org/model@{revision}", *flags)
    digest = hashlib.sha256(listing(theirs).encode()).hexdigest()
    equal(f"digest of {revision}", f"sha256sum: {digest}\n" in manifest, True)
    equal(f"commit of {revision}", api.model_info("org/model", revision=revision).sha in manifest, True)

one = hf_hub_download("org/old", "onnx/model.bin", revision=commit)
ours = f"{tempfile.mkdtemp()}/model.bin"
run(edge, "fetch", "--url", f"hf://org/old@{commit}/onnx/model.bin", "--output", ours)
equal("one file of a renamed repository", Path(ours).read_bytes(), Path(one).read_bytes())

secret = {"HF_TOKEN": token}
for repository, error in [("org/private", RepositoryNotFoundError), ("org/gated", GatedRepoError)]:
    refused(f"{repository} without a token", error, lambda: hf_hub_download(repository, "config.json"))
    theirs = hf_hub_download(repository, "onnx/model.bin", token=token)
    ours = f"{tempfile.mkdtemp()}/model.bin"
    run(edge, "fetch", "--url", f"hf://{repository}/onnx/model.bin", "--output", ours, more=secret)
    equal(f"{repository} with a token", Path(ours).read_bytes(), Path(theirs).read_bytes())
refused("unknown file", EntryNotFoundError, lambda: hf_hub_download("org/model", "none"))
refused("unknown revision", RevisionNotFoundError, lambda: hf_hub_download("org/model", "config.json", revision="v9"))
refused("unknown repository", RepositoryNotFoundError, lambda: api.model_info("org/none"))
