//! The built agent under a service manager: the test receives the notifications for systemd.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod harness;

use std::{
    os::unix::net::UnixDatagram,
    time::{Duration, Instant},
};

use harness::{Agent, Broker, Cloud, docker::engine};
use neptune_harness::{Process, TIMEOUT};
use serde_json::json;

/// The watchdog's limit. The agent notifies twice within this time.
const LIMIT: Duration = Duration::from_secs(1);

struct Manager {
    socket: UnixDatagram,
    process: Process,
}

impl Manager {
    fn start(agent: &Agent) -> Self {
        let path = agent.dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut command = agent.command();
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", LIMIT.as_micros().to_string());
        let process = Process::start("neptune-edge", agent.dir.path(), &mut command);
        Self { socket, process }
    }

    /// The next notification, or `None` if none arrives within this time.
    fn next(&self, within: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    fn until(&self, what: &str) -> String {
        let end = Instant::now() + TIMEOUT;
        let mut last = None;
        while Instant::now() < end {
            last = self.next(LIMIT).or(last);
            if let Some(message) = last.as_ref().filter(|message| message.contains(what)) {
                return message.clone();
            }
        }
        panic!("timed out waiting for: {what}; the last notification was {last:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_manager_is_notified_of_ready_watchdog_and_stop() {
    let broker = Broker::start().await;
    let agent = Agent::new(&broker.url());
    let mut manager = Manager::start(&agent);
    let first = manager.next(TIMEOUT).expect("a notification");
    assert!(first.starts_with("READY=1\nWATCHDOG=1\nSTATUS="), "{first}");
    assert!(agent.data_dir().join("neptune.db").exists(), "the database was opened before");
    let message = manager.until(&format!("STATUS=connected; {} ", engine()));
    assert!(message.contains("; 0 of 0 workers running"), "{message}");
    for _ in 0..6 {
        let message = manager.next(LIMIT).expect("a notification before the watchdog's limit");
        assert!(message.contains("WATCHDOG=1") && !message.contains("READY"), "{message}");
    }
    let status = manager.process.terminate().await;
    manager.until("STOPPING=1");
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_loop_sends_no_watchdog_notification() {
    let broker = Broker::start().await;
    let agent = Agent::new(&broker.url());
    let manager = Manager::start(&agent);
    let cloud = Cloud::connect(&agent);
    cloud.node("online", |report| report.online).await;

    // The agent's loop writes, and waits for this lock as for a disk that hangs.
    #[expect(clippy::disallowed_methods, reason = "locks the database as another process")]
    let lock = rusqlite::Connection::open(agent.data_dir().join("neptune.db")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    cloud.insert("default/models/small", &json!({"spec": {"modelUrl": "/absent"}}));
    let mut quiet = Duration::ZERO;
    let end = Instant::now() + TIMEOUT;
    while quiet < 3 * LIMIT && Instant::now() < end {
        let started = Instant::now();
        let message = manager.next(3 * LIMIT);
        quiet = started.elapsed();
        assert!(message.is_none_or(|message| !message.contains("STOPPING")));
    }
    assert!(quiet >= 3 * LIMIT, "the watchdog was notified all the time");
    lock.execute_batch("ROLLBACK").unwrap();
    manager.until("WATCHDOG=1");
}

#[test]
fn invalid_settings_exit_with_the_code_that_prevents_restart() {
    let unit = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../build/systemd/neptune-edge.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    let status = unit.lines().find_map(|line| line.strip_prefix("RestartPreventExitStatus="));
    for wrong in [["--docker-host", "tcp://127.0.0.1:2375"], ["--no-such-flag", "x"]] {
        let ended = Agent::new("mqtt://127.0.0.1:1").command().args(wrong).output().unwrap();
        assert_eq!(
            ended.status.code().map(|code| code.to_string()).as_deref(),
            status,
            "{ended:?}"
        );
    }
}
