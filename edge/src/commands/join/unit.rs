//! Runs the agent's systemd unit, and the doctor as a program of its own.

use std::{collections::BTreeMap, path::Path, process::Stdio, time::Duration};

use tokio::{
    process::Command,
    time::{sleep, timeout},
};

use super::step::{Failure, Reason, Step};
use crate::storage::Store;

/// The unit of the package.
const UNIT: &str = "neptune-edge.service";
/// How long systemd may take: more than `TimeoutStartSec` of the unit.
const SYSTEMD_TIMEOUT: Duration = Duration::from_secs(310);
/// How long the agent may take from its start to the first index.
const INDEX_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval between two looks at the agent.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the doctor may take: its checks run at the same time, each with a limit of its own.
const DOCTOR_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the log may take to be read, and how many lines of it are shown.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);
const LOG_LINES: &str = "10";

/// Runs `neptune-edge doctor` with these settings and nothing else of the environment, so that it
/// finds what the agent finds. Its report is the output of this process.
///
/// # Errors
/// It reported errors, or did not end.
pub async fn doctor(program: &Path, settings: &BTreeMap<String, String>) -> Result<(), String> {
    let mut command = Command::new(program);
    command.arg("doctor").env_clear().stdin(Stdio::null()).kill_on_drop(true);
    // For the program that asks whether the clock is synchronized.
    command.envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs(settings);
    match timeout(DOCTOR_TIMEOUT, command.status()).await {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(_)) => Err("the doctor reported errors, see above".to_owned()),
        Ok(Err(error)) => Err(format!("the doctor did not start: {error}")),
        Err(_) => Err(format!("the doctor did not end within {} s", DOCTOR_TIMEOUT.as_secs())),
    }
}

/// Enables the unit, and starts or restarts it with the new settings.
///
/// # Errors
/// [`Reason::NotStarted`], with the last lines of its log.
pub async fn start() -> Result<(), Failure> {
    for action in ["enable", "restart"] {
        if let Err(why) = systemctl(&[action, UNIT]).await {
            let problem = format!("{why}{}", log().await);
            let remedy = format!(
                "correct the cause, then `systemctl enable --now {UNIT}`; or start `neptune-edge run` with these \
                 settings by other means, and join with --no-unit"
            );
            return Err(Failure::new(Step::Unit, Reason::NotStarted, problem, remedy));
        }
    }
    Ok(())
}

/// Waits until the agent has an index of the controller. A node that joins again has one already: the
/// doctor has connected to the broker then.
///
/// # Errors
/// [`Reason::NotSeen`], with the last lines of its log.
pub async fn until_seen(data_dir: &Path) -> Result<(), Failure> {
    let seen = async {
        while !has_index(data_dir) {
            sleep(POLL_INTERVAL).await;
        }
    };
    if timeout(INDEX_TIMEOUT, seen).await.is_ok() {
        return Ok(());
    }
    let shown = systemctl(&["show", "--property=StatusText", "--value", UNIT]).await;
    let state = shown.unwrap_or_else(|why| why);
    let limit = INDEX_TIMEOUT.as_secs();
    let problem = format!(
        "the agent got no index of the controller within {limit} s; its state: {}{}",
        state.trim(),
        log().await
    );
    let remedy = "the agent keeps trying; check that the controller runs (kubectl -n neptune-system get pods) and knows \
                  the node (kubectl get edgenodes), then `neptune-edge doctor`";
    Err(Failure::new(Step::Unit, Reason::NotSeen, problem, remedy))
}

/// Stops the unit, and disables it.
///
/// # Errors
/// systemd did not stop it, or has no such unit.
pub async fn stop() -> Result<(), String> {
    systemctl(&["disable", "--now", UNIT]).await.map(drop)
}

/// Whether the agent has stored an index. It does so with the first one that it receives.
fn has_index(data_dir: &Path) -> bool {
    let replica = Store::read_only(data_dir).and_then(|store| store.replica());
    replica.is_ok_and(|replica| replica.index().revision != <_>::default())
}

async fn systemctl(arguments: &[&str]) -> Result<String, String> {
    let shown = format!("systemctl {}", arguments.join(" "));
    let mut command = Command::new("systemctl");
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(SYSTEMD_TIMEOUT, command.output())
        .await
        .map_err(|_| format!("`{shown}` did not end within {} s", SYSTEMD_TIMEOUT.as_secs()))?;
    let output = output.map_err(|error| format!("`{shown}` did not start: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{shown}` failed: {}", why.trim()))
}

/// The last lines of the unit's log, each on a line of its own; empty if there is no log.
async fn log() -> String {
    let mut command = Command::new("journalctl");
    command.args(["--unit", UNIT, "--lines", LOG_LINES, "--no-pager", "--output", "cat"]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let Ok(Ok(output)) = timeout(LOG_TIMEOUT, command.output()).await else {
        return String::new();
    };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().flat_map(|line| ["\n    ", line]).collect()
}
