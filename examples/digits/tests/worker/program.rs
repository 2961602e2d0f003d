//! The program of this example as a child process.

use std::process::{Command, ExitStatus};

use neptune_harness::Process;
use serde_json::Value;
use tempfile::TempDir;

pub const SERVICE: &str = "demo";
pub const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/small.json");
pub const BIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/big.json");

pub struct Program {
    process: Process,
    _dir: TempDir,
}

impl Program {
    /// Starts a worker with this environment and no other.
    pub fn start(boot: &str, environment: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
        command.arg(boot).env_clear().env("SERVICE_NAME", SERVICE);
        command.envs(environment.iter().copied());
        Self { process: Process::start(boot, dir.path(), &mut command), _dir: dir }
    }

    /// An edge worker that does not wait between samples or for the cloud worker, with the rule of
    /// the manifest.
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
            ("CLOUD_WAIT", "0"),
        ];
        environment.extend_from_slice(more);
        Self::start("edge", &environment)
    }

    /// The next line on standard output, which must be JSON.
    pub async fn line(&mut self) -> Value {
        serde_json::from_str(&self.process.next_line().await).unwrap()
    }

    pub async fn terminate(&mut self) -> ExitStatus {
        self.process.terminate().await
    }

    pub async fn exited(&mut self) -> ExitStatus {
        self.process.exited().await
    }
}
