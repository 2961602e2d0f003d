//! Reads the end of a container's log for a request. What of it leaves the node is decided by
//! `neptune_agent_core::logs`.

use bollard::{container::LogOutput, errors::Error as DockerError, query_parameters as query};
use futures::StreamExt as _;
use neptune_agent_core::logs::{
    lines::{LogLines, LogText},
    requests::LogRead,
};
use tokio::time::timeout;

use crate::{containers::LOG_TIMEOUT, docker::Docker};

/// Bytes that are read of a log. With more, fewer lines are requested: the engine sends the last
/// lines, and of these the first ones first.
const MAX_READ_BYTES: usize = 1 << 20;

/// How many times fewer lines are requested if there are too many bytes.
const FEWER: usize = 4;

/// Whether the engine sent all lines.
#[derive(Debug, PartialEq, Eq)]
enum Extent {
    All,
    /// There are more bytes than are read.
    Part,
}

impl Docker {
    /// The end of a container's log.
    ///
    /// # Errors
    /// The engine does not answer in time, has no such container, or does not read its log.
    pub async fn read_log(&self, read: &LogRead) -> Result<LogText, String> {
        let mut kept = LogLines::new(read.since, read.lines);
        let result = timeout(LOG_TIMEOUT, self.read_rounds(read, &mut kept)).await;
        match result {
            Ok(Ok(is_complete)) => Ok(kept.finish(!is_complete)),
            Ok(Err(error)) => Err(self.problem(&error).message),
            // What was read before the timeout is used.
            Err(_) if !kept.is_empty() => Ok(kept.finish(true)),
            Err(_) => {
                Err(format!("the engine sent no log for {} s; try again", LOG_TIMEOUT.as_secs()))
            }
        }
    }

    /// Reads with fewer lines in each round, until they are few enough bytes. Returns whether the
    /// first round was enough.
    async fn read_rounds(&self, read: &LogRead, kept: &mut LogLines) -> Result<bool, DockerError> {
        // One more shows whether lines since that time are left out.
        let mut lines = read.lines + usize::from(read.since.is_some());
        let mut is_complete = true;
        loop {
            *kept = LogLines::new(read.since, read.lines);
            if self.read_lines(read, lines, kept).await? == Extent::All {
                return Ok(is_complete);
            }
            is_complete = false;
            if lines == 1 {
                return Ok(is_complete);
            }
            lines = (lines / FEWER).max(1);
        }
    }

    async fn read_lines(
        &self,
        read: &LogRead,
        lines: usize,
        kept: &mut LogLines,
    ) -> Result<Extent, DockerError> {
        // The engine knows only whole seconds.
        let since = read.since.map_or(0, |since| i32::try_from(since.as_second()).unwrap_or(0));
        let options = query::LogsOptionsBuilder::new()
            .stdout(true)
            .stderr(true)
            .timestamps(true)
            .since(since)
            .tail(&lines.to_string())
            .build();
        let mut sent = std::pin::pin!(self.client()?.logs(&read.container, Some(options)));
        let mut bytes = 0;
        while let Some(output) = sent.next().await {
            let (LogOutput::StdErr { message }
            | LogOutput::StdOut { message }
            | LogOutput::Console { message }) = output?
            else {
                continue;
            };
            bytes += message.len();
            kept.add(&message);
            if bytes > MAX_READ_BYTES {
                return Ok(Extent::Part);
            }
        }
        Ok(Extent::All)
    }
}
