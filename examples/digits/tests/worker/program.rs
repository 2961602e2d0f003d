//! The program of this example as a child process.

use std::process::{ExitStatus, Stdio};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::soon;

pub const SERVICE: &str = "demo";
pub const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/small.json");
pub const BIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/big.json");

pub struct Program {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// With this environment and no other.
    pub fn start(boot: &str, environment: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_digits"))
            .arg(boot)
            .env_clear()
            .env("SERVICE_NAME", SERVICE)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
    }

    /// An edge worker that hurries, with the manifest's rule.
    pub fn edge(broker: &str, cloud: &str, more: &[(&str, &str)]) -> Self {
        let mut environment = vec![
            ("WORKER_NAME", "demo-edge"),
            ("MODEL_URL", SMALL),
            ("MQTT_URL", broker),
            ("BIG_MODEL_URL", cloud),
            ("HEM_NAME", "CrossEntropy"),
            ("HEM_PARAMETERS", r#"[{"key":"threshold_cross_entropy","value":"0.75"}]"#),
            ("LC_PERIOD", "0.1"),
            ("RATE", "0"),
        ];
        environment.extend_from_slice(more);
        Self::start("edge", &environment)
    }

    /// The next line on standard output, which must be JSON.
    pub async fn line(&mut self) -> Value {
        let line = soon(self.output.next_line()).await.unwrap();
        serde_json::from_str(&line.expect("the worker ended early")).unwrap()
    }

    pub async fn terminate(&mut self) -> ExitStatus {
        let pid = self.child.id().expect("the worker is still running");
        let sent =
            Command::new("sh").args(["-c", &format!("kill -TERM {pid}")]).status().await.unwrap();
        assert!(sent.success());
        self.ended().await
    }

    pub async fn ended(&mut self) -> ExitStatus {
        soon(self.child.wait()).await.unwrap()
    }
}
