//! Sessions with real files: what a server writes becomes the state of the run, and its weights a
//! content. The test is the server.

use std::{fs, path::PathBuf, sync::Arc};

use neptune_aggregator::{
    aggregator::Aggregator,
    run::{Event, Work},
    session,
};
use neptune_wire::{
    ContentHash,
    aggregator::{RunPhase, RunRequest, SessionSettings},
};

use crate::fixtures::{SHAPES, npz, request};

/// A file whose numbers are all the same.
fn weights(value: f32) -> Vec<u8> {
    let tensor = |(_, shape): &(&str, &[usize])| vec![value; shape.iter().product()];
    npz(&SHAPES.iter().map(tensor).collect::<Vec<_>>())
}

struct Session {
    directory: tempfile::TempDir,
    aggregator: Arc<Aggregator>,
}

impl Session {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let aggregator = Arc::new(Aggregator::open(directory.path()).unwrap());
        let server = ContentHash::compute(&"server");
        let mut request: RunRequest = request(2, 3);
        request.settings.initial = None;
        request.settings.session = Some(SessionSettings { server, backoff_limit: 3 });
        request.session_host = Some("192.0.2.1".to_owned());
        aggregator.apply(Event::Request(Box::new(request))).unwrap();
        Self { directory, aggregator }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join("session").join(path)
    }

    /// Writes a file as the server does.
    fn write(&self, path: &str, content: &[u8]) {
        let path = self.path("out").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Does the work of the run once.
    fn work(&self) {
        match self.aggregator.run().unwrap().work().unwrap() {
            ref work @ Work::StartSession(ref start) => {
                session::start(&self.aggregator, work, start).map(drop).unwrap();
            }
            ref work @ Work::WatchSession(attempt) => {
                session::watch(&self.aggregator, work, attempt).unwrap();
            }
            work => panic!("{work:?}"),
        }
    }

    fn begin(&self) {
        self.write("server", ContentHash::compute(&"server").to_string().as_bytes());
        self.work();
    }
}

#[test]
fn server_of_another_container_is_not_started() {
    let session = Session::new();
    session.write("server", b"another");
    session.work();
    let status = session.aggregator.status();
    assert_eq!(
        (status.phase, status.reason.as_deref()),
        (RunPhase::Preparing, Some("WaitingForAggregator"))
    );
    assert!(!session.path("in/start").exists());
    session.begin();
    assert_eq!(fs::read_to_string(session.path("in/start")).unwrap(), "1-1");
    assert_eq!(session.aggregator.status().tasks.len(), 2);
}

#[test]
fn files_of_the_server_become_rounds_and_published_weights() {
    let session = Session::new();
    session.begin();
    let env = fs::read_to_string(session.path("in/1-1/env")).unwrap();
    assert!(env.contains("export OUTPUT_DIR=\"$SESSION_DIR/out/1-1/output\"\n"), "{env}");
    assert!(!env.contains("WEIGHTS_URL"), "{env}");
    let ca = session.aggregator.status().session.unwrap().ca;
    assert_eq!(fs::read_to_string(session.path("in/1-1/ca.pem")).unwrap(), ca);
    session.write("1-1/output/progress.jsonl", b"{\"round\":1,\"participants\":2}\n");
    session.work();
    assert_eq!(session.aggregator.status().round, 1);
    let weights = weights(1.0);
    session.write("1-1/output/weights.npz", &weights);
    session.write("1-1/exit", b"0");
    session.work();
    let status = session.aggregator.status();
    assert_eq!((status.phase, status.format.as_deref()), (RunPhase::Succeeded, Some("npz")));
    assert!(session.aggregator.content(&status.best.unwrap().weights.sha256).is_some());
    assert!(!session.path("in/start").exists());
}

#[test]
fn killed_server_continues_with_its_weights_after_a_restart_of_the_aggregator() {
    let mut session = Session::new();
    session.begin();
    let weights = weights(1.0);
    session.write("1-1/output/weights.npz", &weights);
    session.write("1-1/exit", b"137");
    session.work();
    drop(session.aggregator);
    session.aggregator = Arc::new(Aggregator::open(session.directory.path()).unwrap());
    session.work();
    let status = session.aggregator.status();
    assert_eq!(status.session.unwrap().attempt, 2);
    let digest = neptune_content::Digest::of_bytes(&weights).to_string();
    assert_eq!(status.base.map(|it| it.sha256), Some(digest));
    assert!(status.message.starts_with("attempt 1: the server ended with exit code 137 (killed)"));
    assert_eq!(fs::read(session.path("in/1-2/weights.npz")).unwrap(), weights);
    assert!(!session.path("in/1-1").exists() && !session.path("out/1-1").exists());
}

/// The disk may be full, or the Pod evicted, while the next attempt is prepared.
#[test]
fn weights_of_an_attempt_outlive_a_start_of_the_next_one_that_fails() {
    let mut session = Session::new();
    session.begin();
    let weights = weights(1.0);
    session.write("1-1/output/weights.npz", &weights);
    session.write("1-1/exit", b"137");
    session.work();
    // The input of the next attempt cannot be created.
    fs::write(session.path("in/1-2"), "").unwrap();
    let Some(ref work @ Work::StartSession(ref start)) = session.aggregator.run().unwrap().work()
    else {
        panic!("the next attempt starts")
    };
    session::start(&session.aggregator, work, start).unwrap_err();
    fs::remove_file(session.path("in/1-2")).unwrap();
    // Contents that no state names are removed.
    drop(session.aggregator);
    session.aggregator = Arc::new(Aggregator::open(session.directory.path()).unwrap());
    session.work();
    let status = session.aggregator.status();
    let digest = neptune_content::Digest::of_bytes(&weights).to_string();
    assert_eq!(status.base.map(|it| it.sha256), Some(digest));
    assert!(!session.path("out/1-1").exists());
    assert_eq!(fs::read_to_string(session.path("in/start")).unwrap(), "1-2");
}

#[test]
fn start_that_a_power_failure_emptied_is_written_while_the_session_waits() {
    let session = Session::new();
    session.begin();
    fs::write(session.path("in/start"), "").unwrap();
    session.work();
    assert_eq!(fs::read_to_string(session.path("in/start")).unwrap(), "1-1");
}

#[test]
fn unusable_weights_end_the_attempt_with_their_reason() {
    let nan = weights(f32::NAN);
    for (file, content, reason) in [
        ("weights.npz", nan, "NotFinite"),
        ("weights.npz", b"text".to_vec(), "OutputMissing"),
        ("weights.npz", vec![0; 2 << 20], "UpdateTooLarge"),
        ("other", Vec::new(), "OutputMissing"),
    ] {
        let session = Session::new();
        session.begin();
        session.write(&format!("1-1/output/{file}"), &content);
        session.write("1-1/exit", b"0");
        session.work();
        let status = session.aggregator.status();
        assert_eq!(status.reason.as_deref(), Some(reason), "{}", status.message);
        assert!(status.message.starts_with("attempt 1: "), "{}", status.message);
        assert!(matches!(session.aggregator.run().unwrap().work(), Some(Work::StartSession(_))));
    }
}
