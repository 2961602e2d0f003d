//! Runs a program in a container as a probe. What its result means is decided by
//! `neptune_agent_core::probes`.

use std::time::Duration;

use bollard::{errors::Error as DockerError, exec::StartExecOptions, models::ExecConfig};
use neptune_agent_core::domain::probe::{ProbeAnswer, ProbeResult};
use tokio::time::{sleep, timeout};

use crate::{
    docker::{Docker, plain, status_code},
    inspect::InspectedExec,
};

/// Pause between two questions whether a program has ended.
const POLL: Duration = Duration::from_millis(100);
/// Timeout of one request about a program. Without an answer, nothing is known of the container.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of the engine's reason for a program that does not start, in characters.
const MAX_REASON: usize = 200;

impl Docker {
    /// Runs a program in a container. It is not run before that of an earlier probe ended, whose ID
    /// is `running`: the engine cannot end it.
    pub async fn probe_exec(
        &self,
        container: &str,
        command: &[String],
        running: Option<String>,
        within: Duration,
    ) -> ProbeAnswer {
        if let Some(id) = running {
            match self.exec(&id).await {
                Ok(Some(earlier)) if earlier.running => {
                    let why = "the command of an earlier probe has not ended";
                    return failure(why, Some(id));
                }
                Ok(_) => {}
                Err(_) => return unknown(Some(id)),
            }
        }
        match self.start_exec(container, command).await {
            Ok(id) => self.await_exec(id, within).await,
            Err(answer) => answer,
        }
    }

    /// Starts a program without waiting for its end. Returns its ID, or what is known without it.
    async fn start_exec(&self, container: &str, command: &[String]) -> Result<String, ProbeAnswer> {
        let config = ExecConfig { cmd: Some(command.to_vec()), ..ExecConfig::default() };
        let created = limited(async { self.client()?.create_exec(container, config).await });
        let id = created.await.map_err(|error| refused(&error, None))?.id;
        let detached = StartExecOptions { detach: true, ..StartExecOptions::default() };
        let started = limited(async { self.client()?.start_exec(&id, Some(detached)).await });
        match started.await {
            Ok(_) => Ok(id),
            Err(error) => Err(refused(&error, Some(id))),
        }
    }

    /// Waits for the end of a program.
    async fn await_exec(&self, id: String, within: Duration) -> ProbeAnswer {
        let exit_code = match timeout(within, self.exit_code(&id)).await {
            Ok(exit_code) => exit_code,
            // Whether the program hangs or the engine.
            Err(_) => match self.exec(&id).await {
                Ok(Some(InspectedExec { running: true, .. })) => {
                    return failure(&late(within), Some(id));
                }
                Ok(_) => return failure(&late(within), None),
                Err(error) => Err(error),
            },
        };
        match exit_code {
            Ok(Some(0)) => Ok(()).into(),
            Ok(Some(code)) => failure(&format!("exit code {code}"), None),
            Ok(None) => unknown(None),
            Err(_) => unknown(Some(id)),
        }
    }

    /// Resolves with the exit code when a program has ended; with `None` if the engine does not know
    /// it, because its container was removed.
    async fn exit_code(&self, id: &str) -> Result<Option<i64>, DockerError> {
        loop {
            match self.exec(id).await? {
                None => return Ok(None),
                Some(InspectedExec { running: false, exit_code: Some(code) }) => {
                    return Ok(Some(code));
                }
                Some(_) => sleep(POLL).await,
            }
        }
    }

    async fn exec(&self, id: &str) -> Result<Option<InspectedExec>, DockerError> {
        limited(self.socket().exec(id)).await
    }
}

async fn limited<T>(
    request: impl Future<Output = Result<T, DockerError>>,
) -> Result<T, DockerError> {
    timeout(ENGINE_TIMEOUT, request).await.unwrap_or(Err(DockerError::RequestTimeoutError))
}

/// What a refusal of the engine means for the probe. `id` is the program that may run if the
/// engine did not answer.
fn refused(error: &DockerError, id: Option<String>) -> ProbeAnswer {
    match status_code(error) {
        None => unknown(id),
        // The container does not run, or is paused.
        Some(404 | 409) => unknown(None),
        // Such as a program that does not exist.
        Some(_) => failure(&plain(error).chars().take(MAX_REASON).collect::<String>(), None),
    }
}

fn late(within: Duration) -> String {
    format!("no end within {} ms", within.as_millis())
}

fn failure(why: &str, running_exec: Option<String>) -> ProbeAnswer {
    ProbeAnswer { result: ProbeResult::Failure(format!("exec: {why}")), running_exec }
}

fn unknown(running_exec: Option<String>) -> ProbeAnswer {
    ProbeAnswer { result: ProbeResult::Unknown, running_exec }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::fake_engine::{Answers, engine};

    async fn probe(answers: Answers, running: Option<&str>) -> ProbeAnswer {
        let (docker, _directory) = engine(answers);
        let within = Duration::from_millis(250);
        docker.probe_exec("c1", &["check".to_owned()], running.map(str::to_owned), within).await
    }

    /// The answers of an engine that starts the program and then describes it in this way.
    macro_rules! started {
        ($description:expr) => {
            |path: &str| {
                Some(match path.rsplit('/').next()? {
                    "exec" => (201, json!({"Id": "e1"})),
                    "start" => (200, json!({})),
                    _ => $description,
                })
            }
        };
    }

    #[tokio::test]
    async fn exit_code_decides() {
        let exited = started!((200, json!({"Running": false, "ExitCode": 0})));
        assert_eq!(probe(exited, None).await, Ok(()).into());
        let exited = started!((200, json!({"Running": false, "ExitCode": 255})));
        assert_eq!(probe(exited, None).await, failure("exit code 255", None));
        let removed = started!((404, json!({"message": "no such exec"})));
        assert_eq!(probe(removed, None).await, unknown(None));
    }

    #[tokio::test]
    async fn program_that_does_not_end_is_kept_and_no_second_one_starts() {
        let hangs = started!((200, json!({"Running": true, "ExitCode": null})));
        let expected = failure("no end within 250 ms", Some("e1".to_owned()));
        assert_eq!(probe(hangs, None).await, expected);
        let second: Answers = |path| match path {
            "/exec/e1/json" => Some((200, json!({"Running": true}))),
            other => unreachable!("a second program: {other}"),
        };
        let earlier = "the command of an earlier probe has not ended";
        assert_eq!(probe(second, Some("e1")).await, failure(earlier, Some("e1".to_owned())));
        let ended = started!((200, json!({"Running": false, "ExitCode": 0})));
        assert_eq!(probe(ended, Some("e0")).await, Ok(()).into());
    }

    #[tokio::test]
    async fn refusal_is_a_failure_only_if_the_program_is_its_cause() {
        let paused: Answers = |_| Some((409, json!({"message": "Container c1 is paused"})));
        assert_eq!(probe(paused, None).await, unknown(None));
        let missing: Answers = |path| {
            let text = "OCI runtime exec failed: \"check\": executable file not found in $PATH";
            Some(match path.rsplit('/').next()? {
                "exec" => (201, json!({"Id": "e1"})),
                _ => (400, json!({ "message": text })),
            })
        };
        let why = "OCI runtime exec failed: \"check\": executable file not found in $PATH";
        assert_eq!(probe(missing, None).await, failure(why, None));
        let silent = started!(return None);
        assert_eq!(probe(silent, None).await, unknown(Some("e1".to_owned())), "the engine hangs");
    }
}
