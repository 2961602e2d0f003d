//! A mosquitto process on a free port of the loopback, and what is published there.

use std::path::PathBuf;
use std::process::Stdio;

use neptune_link::{Link, LinkEvent, LinkEvents, LinkOptions, Message};
use neptune_wire::WorkerInfo;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::soon;

pub struct Mosquitto {
    pub port: u16,
    _dir: TempDir,
    _child: Child,
}

impl Mosquitto {
    pub async fn start() -> Self {
        // Between choosing a port and listening somebody else may take it: then the next one.
        for _ in 0..5 {
            if let Some(broker) = Self::on_port(free_port()).await {
                return broker;
            }
        }
        panic!("mosquitto does not start");
    }

    pub async fn on_port(port: u16) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("conf");
        // As root it would become another user, who may not read the test's files.
        let text = format!(
            "user root\nlistener {port} 127.0.0.1\nlog_dest stderr\nallow_anonymous true\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(program());
        command.arg("-c").arg(config).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        while let Some(line) = log.next_line().await.unwrap() {
            if line.ends_with(" running") {
                // Read on, so that the broker never waits for room in the pipe.
                tokio::spawn(async move { while let Ok(Some(_)) = log.next_line().await {} });
                return Some(Self { port, _dir: dir, _child: child });
            }
        }
        None
    }

    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    /// Says something that also those hear who come later.
    pub async fn retain(&self, topic: &str, payload: String) {
        let (link, _events) =
            Link::start(LinkOptions::new(self.url().parse().unwrap(), "agent")).unwrap();
        let message = Message { topic: topic.to_owned(), payload: payload.into(), retain: true };
        link.publish(message).unwrap();
        soon(link.flushed()).await;
    }

    pub async fn listen(&self) -> Reports {
        let mut options = LinkOptions::new(self.url().parse().unwrap(), "listener");
        options.subscriptions = vec!["neptune/workers/+/info".to_owned()];
        let (link, mut events) = Link::start(options).unwrap();
        assert_eq!(soon(events.next()).await, Some(LinkEvent::Up));
        Reports { _link: link, events }
    }
}

/// The workers' reports from now on.
pub struct Reports {
    _link: Link,
    events: LinkEvents,
}

impl Reports {
    pub async fn next(&mut self) -> WorkerInfo {
        loop {
            if let LinkEvent::Message(message) = soon(self.events.next()).await.unwrap() {
                assert_eq!(message.topic, "neptune/workers/demo-edge/info");
                return serde_json::from_slice(&message.payload).unwrap();
            }
        }
    }

    /// The first report from now on that fits.
    pub async fn until(&mut self, fits: impl Fn(&WorkerInfo) -> bool) -> WorkerInfo {
        loop {
            let report = self.next().await;
            if fits(&report) {
                return report;
            }
        }
    }
}

/// Inferred and hard.
pub fn counted(report: &WorkerInfo) -> (u64, u64) {
    let task = report.task_info.as_ref().unwrap();
    (task.inference_number, task.hard_example_number)
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/sbin".into()])
        .map(|dir| dir.join("mosquitto"))
        .find(|program| program.is_file())
        .expect("these tests need the broker mosquitto (package mosquitto), in PATH or /usr/sbin")
}

pub use free_port::free_port;
