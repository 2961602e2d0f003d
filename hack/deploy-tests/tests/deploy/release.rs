//! What a release consists of: the chart and the manifests name every image by its digest, archives
//! are reproducible, krew installs what its manifest names, and one key signs all.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use deploy_tests::{helm, repository, text};
use neptune_harness::workspace::run;
use serde_json::{Value, json};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The images of a release, each with its own digest.
fn images() -> Vec<String> {
    let digest = |number: usize| format!("sha256:{number:064x}");
    let line = |(number, name): (usize, &str)| {
        format!("{name} registry.example/mirror/{name}@{}", digest(number + 1))
    };
    ["neptune-cloud", "neptune-edge", "eclipse-mosquitto"]
        .into_iter()
        .enumerate()
        .map(line)
        .collect()
}

fn pack(images: &[String], dir: &Path) -> Command {
    let file = dir.join("list");
    fs::write(&file, images.join("\n") + "\n").unwrap();
    let mut command = script("hack/release-manifests.sh");
    command.arg(file).arg(dir.join("out"));
    command
}

/// A script of this repository, with the folder of this build and the time of a commit.
fn script(path: &str) -> Command {
    let mut command = Command::new(repository(path));
    command.env("CARGO_TARGET_DIR", target()).env("SOURCE_DATE_EPOCH", "1700000000");
    command
}

/// The text of a YAML document as a value.
fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

/// The folder into which cargo builds, where `hack/test.sh` installs helm.
fn target() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(3).unwrap().to_owned()
}

#[test]
fn packed_chart_and_manifests_name_images_by_digest() {
    let dir = tempfile::tempdir().unwrap();
    run(&mut pack(&images(), dir.path()));
    let out = dir.path().join("out");
    assert_eq!(fs::read_to_string(out.join("images.txt")).unwrap(), images().join("\n") + "\n");
    let archive = |ending: &str| {
        let mut entries = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
        entries.find(|path| path.to_str().unwrap().ends_with(ending)).unwrap()
    };
    let rendered = run(helm().args(["template", "neptune"]).arg(archive(".tgz")));
    for image in images() {
        let reference = image.split_once(' ').unwrap().1;
        assert!(rendered.contains(&format!("image: {reference}")), "{reference}: {rendered}");
    }
    let manifests = archive(".tar.gz");
    run(Command::new("tar")
        .arg("--extract")
        .arg("--file")
        .arg(&manifests)
        .arg("-C")
        .arg(dir.path()));
    let folders = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let folder =
        folders.into_iter().find(|path| path.to_str().unwrap().contains("manifests")).unwrap();
    let applied = run(Command::new("kubectl").arg("kustomize").arg(folder.join("deploy/mqtt")));
    for image in images() {
        let reference = image.split_once(' ').unwrap().1;
        assert!(applied.contains(&format!("image: {reference}")), "{reference}");
    }
}

#[test]
fn release_without_a_digest_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let tagged = images()[0].replace("@sha256:", ":v");
    let cases = [
        (vec![images()[0].clone(), images()[1].clone()], "eclipse-mosquitto REPOSITORY@sha256:"),
        (
            vec![tagged, images()[1].clone(), images()[2].clone()],
            "neptune-cloud REPOSITORY@sha256:",
        ),
        ([images(), vec!["other a@sha256:1".to_owned()]].concat(), "names other images: other"),
    ];
    for (images, problem) in cases {
        let output = pack(&images, dir.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(problem), "{text}");
        let packed = fs::read_dir(dir.path().join("out")).unwrap().count();
        assert_eq!(packed, 0, "nothing is packed");
    }
}

/// The files of a folder, by name.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

#[test]
fn chart_and_manifests_packed_twice_are_equal() {
    let packed = || {
        let dir = tempfile::tempdir().unwrap();
        run(&mut pack(&images(), dir.path()));
        files(&dir.path().join("out"))
    };
    let first = packed();
    let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "images.txt".to_owned(),
        format!("neptune-{VERSION}.tgz"),
        format!("neptune-manifests_{VERSION}.tar.gz"),
    ];
    assert_eq!(names, expected);
    assert!(first == packed(), "the second time an archive has other bytes");
}

#[test]
fn packed_chart_describes_images_and_examples_to_artifact_hub() {
    let dir = tempfile::tempdir().unwrap();
    run(&mut pack(&images(), dir.path()));
    let chart = dir.path().join(format!("out/neptune-{VERSION}.tgz"));
    let shown = yaml(&run(helm().args(["show", "chart"]).arg(chart)));
    let annotation = |name: &str| {
        yaml(shown["annotations"][format!("artifacthub.io/{name}")].as_str().expect(name))
    };
    let described = annotation("images");
    let described: Vec<_> = described
        .as_array()
        .unwrap()
        .iter()
        .map(|it| format!("{} {}", it["name"].as_str().unwrap(), it["image"].as_str().unwrap()))
        .collect();
    assert_eq!(described, images());

    let crds = annotation("crds");
    let mut described: Vec<_> = crds
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["name"].clone(), it["kind"].clone()))
        .collect();
    described.sort_by_key(|(name, _)| name.to_string());
    let definitions = files(&repository("crds")).into_iter().map(|(_, text)| {
        let definition = yaml(&String::from_utf8(text).unwrap());
        (definition["metadata"]["name"].clone(), definition["spec"]["names"]["kind"].clone())
    });
    assert_eq!(described, definitions.collect::<Vec<_>>());

    let examples = annotation("crdsExamples");
    let kinds: Vec<_> = examples.as_array().unwrap().iter().map(|it| it["kind"].clone()).collect();
    assert_eq!(kinds, ["Model", "Model", "JointInferenceService"]);
    let changes = annotation("changes").to_string();
    assert!(changes.contains(&format!("Neptune {VERSION}")), "{changes}");
    let notes = text("CHANGELOG.md");
    assert!(notes.contains(&format!("\n## [{VERSION}] - 20")), "CHANGELOG.md has this version");
}

/// Packs a program, which prints its name and its arguments, for both architectures.
fn archives(dir: &Path) -> PathBuf {
    let (program, licences, dist) = (dir.join("program"), dir.join("licences"), dir.join("dist"));
    fs::write(&program, "#!/bin/sh\necho \"$(basename \"$0\") $*\"\n").unwrap();
    fs::write(&licences, "of the crates\n").unwrap();
    for arch in ["amd64", "arm64"] {
        let mut archive = script("build/archive.sh");
        archive.env("BINARY", &program).env("ARCH", arch).env("THIRD_PARTY", &licences);
        run(archive.arg("neptune-cloud").arg(&dist));
    }
    dist
}

#[test]
fn archives_and_packages_built_twice_from_one_program_are_equal() {
    let built = || {
        let dir = tempfile::tempdir().unwrap();
        let dist = archives(dir.path());
        // strip leaves a script as it is.
        let mut package = script("build/deb.sh");
        run(package.arg(&dist).env("BINARY", dir.path().join("program")).env("ARCH", "arm64"));
        files(&dist)
    };
    let first = built();
    let names: Vec<_> = first.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        format!("neptune-cloud_{VERSION}_linux_amd64.tar.gz"),
        format!("neptune-cloud_{VERSION}_linux_arm64.tar.gz"),
        format!("neptune-edge_{VERSION}_arm64.deb"),
    ];
    assert_eq!(names, expected);
    assert!(first == built(), "the second time an archive or a package has other bytes");
}

/// Does what krew does with a platform of its manifest. Returns the path of the plugin.
fn install(platform: &Value, dist: &Path, dir: &Path) -> PathBuf {
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned();
    let uri = text(&platform["uri"]);
    let (folder, name) = uri.rsplit_once('/').unwrap();
    assert_eq!(folder, "https://releases.example/v1");
    let archive = dist.join(name);
    let sum = run(Command::new("sha256sum").arg(&archive));
    assert_eq!(sum.split_whitespace().next().unwrap(), text(&platform["sha256"]));
    let (unpacked, plugin) = (dir.join("unpacked"), dir.join("plugin"));
    fs::create_dir(&unpacked).unwrap();
    fs::create_dir(&plugin).unwrap();
    run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&unpacked));
    for file in platform["files"].as_array().unwrap() {
        let from = unpacked.join(text(&file["from"]));
        let name = match &*text(&file["to"]) {
            "." => from.file_name().unwrap().to_str().unwrap().to_owned(),
            name => name.to_owned(),
        };
        fs::rename(&from, plugin.join(name)).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    let left = fs::read_dir(unpacked.join(format!("neptune-cloud-{VERSION}"))).unwrap().count();
    assert_eq!(left, 0, "the manifest names each file of the archive");
    plugin.join(text(&platform["bin"]))
}

#[test]
fn krew_installs_the_plugin_that_its_manifest_names() {
    let dir = tempfile::tempdir().unwrap();
    let dist = archives(dir.path());
    run(script("hack/krew-manifest.sh").arg("https://releases.example/v1/").arg(&dist));
    let manifest = yaml(&fs::read_to_string(dist.join("neptune.yaml")).unwrap());
    assert_eq!(manifest["metadata"], json!({"name": "neptune"}));
    assert_eq!(manifest["spec"]["version"], format!("v{VERSION}"));
    let platforms = manifest["spec"]["platforms"].as_array().unwrap();
    for (platform, arch) in platforms.iter().zip(["amd64", "arm64"]) {
        assert_eq!(platform["selector"]["matchLabels"], json!({"os": "linux", "arch": arch}));
        let dir = tempfile::tempdir().unwrap();
        let plugin = install(platform, &dist, dir.path());
        let printed = run(Command::new(plugin).args(["nodes", "edge0"]));
        assert_eq!(printed, "kubectl-neptune nodes edge0\n");
    }
    assert_eq!(platforms.len(), 2);

    let archive = dist.join(format!("neptune-cloud_{VERSION}_linux_arm64.tar.gz"));
    let empty = ["--create", "--gzip", "--files-from=/dev/null", "--file"];
    run(Command::new("tar").args(empty).arg(archive));
    let refused = script("hack/krew-manifest.sh").arg("https://a.example").arg(&dist).output();
    let error = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(error.contains("arm64.tar.gz has no neptune-cloud-"), "{error}");
}

/// A keyring of gpg of its own. Its agent ends with it.
struct Keyring(tempfile::TempDir);

impl Keyring {
    fn with_key(algorithm: &str) -> Self {
        let keyring = Self(tempfile::tempdir().unwrap());
        let arguments = ["--quiet", "--passphrase", "", "--quick-generate-key", "r@example.org"];
        run(keyring.gpg().args(arguments).args([algorithm, "sign", "never"]));
        keyring
    }

    fn gpg(&self) -> Command {
        let mut gpg = Command::new("gpg");
        gpg.arg("--batch").env("GNUPGHOME", self.0.path());
        gpg
    }

    fn sign(&self, dist: &Path) -> Command {
        let mut sign = script("hack/sign-release.sh");
        sign.args(["--key", "r@example.org"]).arg(dist).env("GNUPGHOME", self.0.path());
        sign
    }
}

impl Drop for Keyring {
    fn drop(&mut self) {
        let mut end = Command::new("gpgconf");
        let _ = end.args(["--kill", "all"]).env("GNUPGHOME", self.0.path()).status();
    }
}

#[test]
fn one_key_signs_checksums_and_chart_as_gpg_and_helm_verify_them() {
    let dir = tempfile::tempdir().unwrap();
    run(&mut pack(&images(), dir.path()));
    let dist = dir.path().join("out");
    let sums = "sha256sum -- * >../SHA256SUMS && mv ../SHA256SUMS .";
    run(Command::new("sh").args(["-c", sums]).current_dir(&dist));
    let keyring = Keyring::with_key("rsa3072");
    run(&mut keyring.sign(&dist));

    // A user has the public key only.
    let user = Keyring(tempfile::tempdir().unwrap());
    run(user.gpg().arg("--import").arg(dist.join("neptune-release-key.asc")));
    let signed = ["SHA256SUMS.asc", "SHA256SUMS"].map(|name| dist.join(name));
    let verify = || user.gpg().arg("--verify").args(&signed).output().unwrap().status.success();
    assert!(verify());
    let public = dir.path().join("public.gpg");
    run(user.gpg().arg("--output").arg(&public).arg("--export"));
    let chart = dist.join(format!("neptune-{VERSION}.tgz"));
    let helm_accepts = || {
        let mut verify = helm();
        verify.arg("verify").arg("--keyring").arg(&public).arg(&chart);
        verify.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(helm_accepts());

    // A changed file is refused, by both and at the next signature.
    let mut changed = fs::read(&chart).unwrap();
    changed.push(0);
    fs::write(&chart, changed).unwrap();
    assert!(!helm_accepts());
    let refused = keyring.sign(&dist).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("is not what SHA256SUMS names"), "{error}");
    fs::write(&signed[1], "0000  other\n").unwrap();
    assert!(!verify());
}

#[test]
fn key_that_helm_cannot_read_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    run(&mut pack(&images(), dir.path()));
    let dist = dir.path().join("out");
    run(Command::new("sh").args(["-c", "sha256sum *.tgz >SHA256SUMS"]).current_dir(&dist));
    let refused = Keyring::with_key("ed25519").sign(&dist).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("has to be an RSA key"), "{error}");
}

/// The problems that `hack/release.sh --dry-run` prints.
fn problems(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut release = script("hack/release.sh");
    release.arg("--dry-run").args(arguments).env_remove("RELEASE_KEY").env_remove("RELEASE_URL");
    let output = release.envs(variables.iter().copied()).output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn release_without_a_key_has_to_be_asked_for() {
    let no_key = "RELEASE_KEY names no key that signs";
    assert!(problems(&[], &[]).contains(no_key));
    let unsigned = problems(&["--unsigned"], &[("RELEASE_URL", "https://a.example/v1")]);
    assert!(!unsigned.contains("RELEASE_KEY") && !unsigned.contains("RELEASE_URL"), "{unsigned}");
    assert!(unsigned.contains("neptune.yaml") && !unsigned.contains(".prov"), "{unsigned}");
    let empty = tempfile::tempdir().unwrap();
    let home = ("GNUPGHOME", empty.path().to_str().unwrap());
    let unknown = problems(&[], &[("RELEASE_KEY", "nobody@example.org"), home]);
    assert!(unknown.contains("gpg has no secret key nobody@example.org"), "{unknown}");
    let both = problems(&["--unsigned"], &[("RELEASE_KEY", "r@example.org")]);
    assert!(both.contains("exclude each other"), "{both}");
    // Each file that a version is in has this one.
    for file in ["Chart.yaml", "kustomization.yaml", "__init__.py", "asyncapi.yaml", "CHANGELOG"] {
        assert!(!unsigned.contains(&format!("{file}:")), "{unsigned}");
    }
}
