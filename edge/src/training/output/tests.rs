//! Outputs of honest and of hostile programs, as files.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{os::unix::fs::symlink, path::PathBuf};

use super::*;

/// A safetensors file with one tensor.
fn weights(name: &str, values: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let header = format!(
        r#"{{"{name}":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}}"#,
        values.len(),
        data.len()
    );
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

struct Fixture {
    _dir: tempfile::TempDir,
    files: TaskFiles,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = TaskFiles::new(dir.path(), &TaskId("0".repeat(64)));
        let user = rustix::process::geteuid().as_raw();
        files.reset_output(user, user).unwrap();
        fs::write(files.base(), weights("w", &[1.0, 2.0])).unwrap();
        let fixture = Self { _dir: dir, files };
        fixture.write("result.json", br#"{"samples": 7}"#);
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.output().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    fn verify(&self, kind: TaskKind) -> Result<TaskOutput, VerifyProblem> {
        let expected = Expected { kind, max_update_bytes: 1000, counted: Some(8), seconds: 3 };
        self.files.verify(&expected)
    }

    fn refused(&self) -> TaskProblem {
        match self.verify(TaskKind::Train) {
            Err(VerifyProblem::Refused(problem)) => problem,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn output_that_cannot_be_removed_is_set_aside_a_few_times() {
    let data_dir = tempfile::tempdir().unwrap();
    let files = TaskFiles::new(data_dir.path(), &TaskId("a".repeat(64)));
    files.create().unwrap();
    for _ in 0..MAX_ASIDE {
        fs::create_dir_all(files.output().join("checkpoint")).unwrap();
        files.set_aside().unwrap();
        assert!(!files.output().exists());
    }
    fs::create_dir_all(files.output()).unwrap();
    let refused = files.set_aside().unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    files.remove().unwrap();
    assert!(!files.dir.exists());
}

#[test]
fn output_has_its_digest_and_the_counted_samples() {
    let fixture = Fixture::new();
    let content = weights("w", &[1.0, 3.0]);
    fixture.write("weights.safetensors", &content);
    let output = fixture.verify(TaskKind::Train).unwrap();
    let expected = OutputWeights {
        name: "weights.safetensors".into(),
        sha256: Digest::of_bytes(&content).to_string(),
        bytes: content.len() as u64,
    };
    assert_eq!(output.weights, Some(expected));
    assert_eq!((output.report.samples, output.report.counted_samples), (7, Some(8)));
    assert_eq!(fixture.verify(TaskKind::Train).unwrap(), output, "a repetition changes nothing");
    fs::remove_file(fixture.files.base()).unwrap();
    assert_eq!(fixture.verify(TaskKind::Initialize).unwrap(), output, "it has no base");
}

#[test]
fn evaluation_needs_no_weights() {
    let fixture = Fixture::new();
    fixture.write("result.json", br#"{"metrics": {"accuracy": 0.9}}"#);
    let output = fixture.verify(TaskKind::Evaluate).unwrap();
    assert_eq!((output.weights, output.report.metrics.len()), (None, 1));
}

#[test]
fn output_that_cannot_be_used_is_refused_with_its_reason() {
    use TrainingReason as Reason;
    let large = weights("w", &[1.0; 300]);
    for (content, reason, text) in [
        (weights("w", &[1.0, f32::NAN]), Reason::NotFinite, "NaN in \"w\" (first at 1)"),
        (weights("w", &[1.0, f32::INFINITY]), Reason::NotFinite, "inf in \"w\""),
        (weights("w", &[1.0]), Reason::ShapeMismatch, "with shape [1], the base has [2]"),
        (weights("v", &[1.0, 2.0]), Reason::ShapeMismatch, "no tensor \"w\""),
        (large, Reason::UpdateTooLarge, "the limit is 1000"),
        (b"nothing".to_vec(), Reason::OutputMissing, "neither a safetensors file"),
        (Vec::new(), Reason::OutputMissing, "neither a safetensors file"),
    ] {
        let fixture = Fixture::new();
        fixture.write("weights.safetensors", &content);
        let problem = fixture.refused();
        assert_eq!(problem.reason, reason, "{problem:?}");
        assert!(problem.message.contains(text), "{problem:?}");
    }
}

#[test]
fn missing_files_are_named() {
    let fixture = Fixture::new();
    assert!(fixture.refused().message.contains("neither weights.npz nor"));
    let content = weights("w", &[1.0, 3.0]);
    fixture.write("weights.safetensors", &content);
    fixture.write("weights.npz", &content);
    assert!(fixture.refused().message.contains("write one of them"));
    fs::remove_file(fixture.path("weights.npz")).unwrap();
    fixture.write("result.json", &vec![b' '; 65 * 1024]);
    assert!(fixture.refused().message.contains("more than 65536 bytes"));
    fs::remove_file(fixture.path("result.json")).unwrap();
    assert!(fixture.refused().message.contains("no result.json"));
}

type Make<'a> = (&'a str, &'a dyn Fn(&Path));

#[test]
fn links_pipes_and_directories_are_not_followed() {
    let content = weights("w", &[1.0, 3.0]);
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), &content).unwrap();
    let link = |path: &Path| symlink(secret.path(), path).unwrap();
    let pipe = |path: &Path| {
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    };
    let socket = |path: &Path| {
        // The path of a socket is short.
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap());
        fs::rename(dir.path().join("s"), path).unwrap();
    };
    let directory = |path: &Path| fs::create_dir(path).unwrap();
    let makes: [Make<'_>; 4] =
        [("link", &link), ("pipe", &pipe), ("socket", &socket), ("directory", &directory)];
    for (what, make) in makes {
        for name in ["weights.safetensors", "result.json"] {
            let fixture = Fixture::new();
            fixture.write("weights.safetensors", &content);
            fs::remove_file(fixture.path(name)).unwrap();
            make(&fixture.path(name));
            let problem = fixture.refused();
            assert_eq!(problem.reason, TrainingReason::OutputMissing, "{what} {name}");
            assert!(problem.message.contains("not a plain file"), "{what} {name}: {problem:?}");
        }
    }
    // The directory itself.
    let fixture = Fixture::new();
    fs::remove_dir_all(fixture.files.output()).unwrap();
    symlink(secret.path().parent().unwrap(), fixture.files.output()).unwrap();
    assert!(matches!(fixture.verify(TaskKind::Train), Err(VerifyProblem::Retry(_))));
}

#[test]
fn usage_counts_sparse_files_and_does_not_follow_links() {
    let fixture = Fixture::new();
    let before = fixture.files.usage().unwrap().unwrap();
    assert!((14..100_000).contains(&before), "{before}");
    File::create(fixture.path("sparse")).unwrap().set_len(1 << 30).unwrap();
    fs::create_dir(fixture.path("d")).unwrap();
    symlink("/", fixture.path("d/root")).unwrap();
    let after = fixture.files.usage().unwrap().unwrap();
    assert!((1 << 30..(1 << 30) + 200_000).contains(&after), "{after}");
    for n in 0..1000 {
        fixture.write(&format!("f{n}"), b"");
    }
    assert_eq!(fixture.files.usage().unwrap(), None);
}

#[test]
fn next_run_finds_an_empty_directory() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("d")).unwrap();
    symlink(fixture.files.base(), fixture.path("link")).unwrap();
    let user = rustix::process::geteuid().as_raw();
    fixture.files.reset_output(user, user).unwrap();
    assert_eq!(fs::read_dir(fixture.files.output()).unwrap().count(), 0);
    assert!(fixture.files.base().exists(), "what a link names stays");
}

#[test]
fn unusable_output_of_another_boot_is_lost_and_that_of_this_one_refused() {
    let fixture = Fixture::new();
    let expected =
        Expected { kind: TaskKind::Train, max_update_bytes: 1000, counted: Some(8), seconds: 3 };
    let verify = |boot: &str| fixture.files.verify_in(boot, &expected);
    // A power failure left an empty file.
    fixture.write("weights.safetensors", b"");
    assert!(matches!(verify("new"), Err(VerifyProblem::Refused(_))), "the boot is not known");
    fixture.files.write_boot("old").unwrap();
    assert!(matches!(verify("old"), Err(VerifyProblem::Refused(_))));
    let Err(VerifyProblem::Lost(problem)) = verify("new") else { panic!("it is lost") };
    assert!(problem.message.contains("the machine restarted"), "{}", problem.message);
    fixture.write("weights.safetensors", &weights("w", &[1.0, 3.0]));
    assert!(verify("new").is_ok(), "a usable output is used");
}
