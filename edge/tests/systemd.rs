//! The built agent under a service manager: the test holds systemd's end of the socket.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bed;

use std::{
    os::unix::net::UnixDatagram,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bed::{Agent, Broker, Cloud, engine};
use serde_json::json;

/// The watchdog's limit. The agent's loop has to be heard twice in this time.
const LIMIT: Duration = Duration::from_secs(1);
/// Longer than any wait that ends well.
const PATIENCE: Duration = Duration::from_secs(20);

struct Manager {
    socket: UnixDatagram,
    child: Child,
}

impl Manager {
    fn start(agent: &Agent) -> Self {
        let path = agent.dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut command = agent.command();
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", LIMIT.as_micros().to_string())
            .stderr(Stdio::null());
        Self { socket, child: command.spawn().unwrap() }
    }

    /// What is said within this time; nothing is the end of the time.
    fn next(&self, within: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    fn until(&self, what: &str) -> String {
        let end = Instant::now() + PATIENCE;
        let mut last = None;
        while Instant::now() < end {
            last = self.next(LIMIT).or(last);
            if let Some(said) = last.as_ref().filter(|said| said.contains(what)) {
                return said.clone();
            }
        }
        panic!("{what} was never said; the last was {last:?}");
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_hears_that_the_agent_is_ready_turns_and_stops() {
    let broker = Broker::start();
    let agent = Agent::new(&broker.url());
    let mut manager = Manager::start(&agent);
    let first = manager.next(PATIENCE).expect("the agent says something");
    assert!(first.starts_with("READY=1\nWATCHDOG=1\nSTATUS="), "{first}");
    assert!(agent.data_dir().join("neptune.db").exists(), "what is stored was read before");
    let said = manager.until(&format!("STATUS=connected; {} ", engine()));
    assert!(said.contains("; 0 of 0 workers running"), "{said}");
    for _ in 0..6 {
        let said = manager.next(LIMIT).expect("the watchdog is fed in time");
        assert!(said.contains("WATCHDOG=1") && !said.contains("READY"), "{said}");
    }
    let id = manager.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    manager.until("STOPPING=1");
    assert_eq!(manager.child.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_that_hangs_is_not_fed_although_the_process_lives() {
    let broker = Broker::start();
    let agent = Agent::new(&broker.url());
    let manager = Manager::start(&agent);
    let cloud = Cloud::of(&agent);
    cloud.node("online", |report| report.online).await;

    // Who writes waits for this lock, as for a disk that hangs; in the agent that is the loop.
    let lock = rusqlite::Connection::open(agent.data_dir().join("neptune.db")).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    cloud.insert("default/models/small", &json!({}));
    let mut quiet = Duration::ZERO;
    let end = Instant::now() + PATIENCE;
    while quiet < 3 * LIMIT && Instant::now() < end {
        let asked = Instant::now();
        let said = manager.next(3 * LIMIT);
        quiet = asked.elapsed();
        assert!(said.is_none_or(|said| !said.contains("STOPPING")));
    }
    assert!(quiet >= 3 * LIMIT, "the watchdog was fed all the time");
    lock.execute_batch("ROLLBACK").unwrap();
    manager.until("WATCHDOG=1");
}

#[test]
fn bad_settings_end_with_the_status_after_which_systemd_does_not_start_again() {
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
