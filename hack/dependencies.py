#!/usr/bin/env python3
"""Lists the crates that a program of the workspace is linked with. Needs cargo and Python's standard library only.

  hack/dependencies.py licenses [--target TRIPLE] PROGRAM...    their licences and licence texts, as text
  hack/dependencies.py sbom [--target TRIPLE] PROGRAM           a bill of materials, CycloneDX 1.5 JSON
  hack/dependencies.py check FILE...                            fails if a bill of materials is malformed

With SOURCE_DATE_EPOCH set, the same sources give the same output, byte by byte.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
LICENCE_FILES = re.compile(r"^(licen[cs]e|copying|notice|copyright|unlicense)", re.IGNORECASE)


def run(*command):
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def host():
    return re.search(r"^host: (.*)$", run("rustc", "-vV"), re.MULTILINE).group(1)


class Workspace:
    """What cargo knows of all packages, by (name, version)."""

    def __init__(self, target):
        self.target = target
        metadata = json.loads(run("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target))
        self.packages = {(p["name"], p["version"]): p for p in metadata["packages"]}
        keys = {p["id"]: (p["name"], p["version"]) for p in metadata["packages"]}
        self.edges = {keys[node["id"]]: [keys[d] for d in node["dependencies"]] for node in metadata["resolve"]["nodes"]}
        lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
        self.checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}

    def linked(self, program):
        """The program's package and all packages that are linked into it. Features are resolved for it alone."""
        tree = run("cargo", "tree", "--locked", "--target", self.target, "--package", program,
                   "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}", "--no-dedupe")
        found = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
        return sorted((name, version.removeprefix("v")) for name, version in found)

    def is_own(self, key):
        return self.packages[key]["source"] is None

    def licence(self, key):
        """An SPDX expression; old crates write a slash for OR."""
        return " ".join((self.packages[key]["license"] or "NOASSERTION").replace("/", " OR ").split())


def licences(workspace, programs):
    linked = {key for program in programs for key in workspace.linked(program) if not workspace.is_own(key)}
    texts, without = {}, []
    for key in sorted(linked):
        folder = pathlib.Path(workspace.packages[key]["manifest_path"]).parent
        files = sorted(f for f in folder.iterdir() if f.is_file() and LICENCE_FILES.match(f.name))
        # C libraries that the crate compiles, such as zstd, are in a folder with a licence of its own.
        files += sorted(folder.glob("*/LICENSE"))
        if not files:
            without.append(key)
        for file in files:
            text = file.read_text(errors="replace").replace("\r\n", "\n").strip("\n")
            # Copies of one licence differ in their line breaks.
            texts.setdefault(" ".join(text.split()), (text, []))[1].append(key)
    title = f"Third-party software in {' and '.join(programs)}"
    print(title, "=" * len(title), "", sep="\n")
    for key in sorted(linked):
        print(f"{key[0]} {key[1]}: {workspace.licence(key)}")
    if without:
        print("\nThese crates contain no licence file; the licence named above applies:")
        print(*(f"  {name} {version}" for name, version in without), sep="\n")
    for text, keys in sorted(texts.values(), key=lambda entry: (-len(entry[1]), entry[1])):
        print("\n" + "-" * 80)
        print("Applies to: " + ", ".join(f"{name} {version}" for name, version in sorted(set(keys))), "", text, sep="\n")


def sbom(workspace, program):
    def reference(key):
        return f"pkg:cargo/{key[0]}@{key[1]}"

    def component(key, kind):
        found = {"type": kind, "bom-ref": reference(key), "name": key[0], "version": key[1],
                 "licenses": [{"expression": workspace.licence(key)}], "purl": reference(key)}
        package = workspace.packages[key]
        if workspace.checksums.get(key):
            found["hashes"] = [{"alg": "SHA-256", "content": workspace.checksums[key]}]
        if package["repository"]:
            found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        return found

    linked = workspace.linked(program)
    main = next(key for key in linked if key[0] == program)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    time = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    components = [component(key, "library") for key in linked if key != main]
    kept = set(linked)
    dependencies = [
        {"ref": reference(key), "dependsOn": sorted(reference(to) for to in set(workspace.edges[key]) & kept)}
        for key in linked
    ]
    content = json.dumps([program, workspace.target, components, dependencies], sort_keys=True)
    print(json.dumps({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": component(main, "application"),
            "properties": [{"name": "target", "value": workspace.target}],
        },
        "components": components,
        "dependencies": dependencies,
    }, indent=2))


def check(path):
    """Required fields, unique references, and no reference to a missing component."""
    bom = json.loads(pathlib.Path(path).read_text())
    problems = []
    if (bom.get("bomFormat"), bom.get("specVersion"), bom.get("version")) != ("CycloneDX", "1.5", 1):
        problems.append("bomFormat, specVersion or version is wrong")
    if not re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bom.get("serialNumber", "")):
        problems.append("serialNumber is no UUID")
    everything = bom.get("components", []) + [bom.get("metadata", {}).get("component", {})]
    for entry in everything:
        missing = [field for field in ("type", "bom-ref", "name", "version", "purl", "licenses") if not entry.get(field)]
        if missing:
            problems.append(f"{entry.get('name')}: without {', '.join(missing)}")
        if "NOASSERTION" in json.dumps(entry.get("licenses")):
            problems.append(f"{entry.get('name')}: no licence")
    references = [entry.get("bom-ref") for entry in everything]
    if len(references) != len(set(references)):
        problems.append("bom-ref is not unique")
    for dependency in bom.get("dependencies", []):
        unknown = {dependency.get("ref"), *dependency.get("dependsOn", [])} - set(references)
        if unknown:
            problems.append(f"dependencies of {dependency.get('ref')}: unknown {sorted(map(str, unknown))}")
    if len(everything) < 50:
        problems.append(f"only {len(everything)} components")
    for problem in problems:
        print(f"{path}: {problem}", file=sys.stderr)
    return not problems


def main():
    command, *arguments = sys.argv[1:] or ["--help"]
    target = None
    if arguments[:1] == ["--target"]:
        target, arguments = arguments[1], arguments[2:]
    if command == "licenses" and arguments:
        licences(Workspace(target or host()), arguments)
    elif command == "sbom" and len(arguments) == 1:
        sbom(Workspace(target or host()), arguments[0])
    elif command == "check" and arguments:
        sys.exit(0 if all([check(path) for path in arguments]) else 1)
    else:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
