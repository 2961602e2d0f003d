//! The steps of a join, and how each can fail: what failed, what exists then, and the command that
//! continues. Pure.

use std::{fmt, path::Path};

use neptune_join::RefusalReason;

/// The exit code of a wrong command line, as of all programs.
const INVALID: u8 = 2;

/// A step of a join, in their order. What a step has done stays when a later one fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Reads the token and the present settings.
    Preflight,
    /// Reads or makes the key of the node.
    Key,
    /// Connects to the join server, and verifies it. The secret is not sent before.
    Connect,
    /// Sends the signing request with the token, and checks the answer.
    Request,
    /// Writes the certificates of the authority.
    Authority,
    /// Writes the certificate of the node.
    Certificate,
    /// Writes the settings: from here on the node is one of the fleet.
    Settings,
    /// Checks the node with the new settings.
    Doctor,
    /// Starts the agent, and waits for its first index.
    Unit,
    /// Prints what the node has now.
    Report,
}

impl Step {
    /// All steps in the order of a join.
    pub const ALL: [Self; 10] = [
        Self::Preflight,
        Self::Key,
        Self::Connect,
        Self::Request,
        Self::Authority,
        Self::Certificate,
        Self::Settings,
        Self::Doctor,
        Self::Unit,
        Self::Report,
    ];

    /// What the step does, for a line before it begins.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Preflight => "reading the token and the present settings",
            Self::Key => "reading or making the key of the node",
            Self::Connect => "connecting to the join server",
            Self::Request => "requesting the certificate",
            Self::Authority => "writing the certificate of the authority",
            Self::Certificate => "writing the certificate of the node",
            Self::Settings => "writing the settings",
            Self::Doctor => "checking the node",
            Self::Unit => "starting the agent",
            Self::Report => "done",
        }
    }

    /// What exists while this step has not ended.
    fn exists(self) -> &'static str {
        match self {
            Self::Preflight => "nothing was written",
            Self::Key => "no setting was changed",
            Self::Connect => {
                "the node's key; no setting was changed, and the secret of the token was not sent"
            }
            Self::Request => "the node's key; no setting was changed",
            Self::Authority | Self::Certificate | Self::Settings => {
                "the node's key, and perhaps its certificate; the settings are as they were"
            }
            Self::Doctor | Self::Unit | Self::Report => {
                "the node has joined: key, certificate and settings are complete"
            }
        }
    }
}

/// Why a join failed. The names are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The text is no token, or there is none.
    TokenMalformed,
    /// The URL is not that of a join server.
    UrlInvalid,
    /// The transport needs no join.
    NothingToJoin,
    /// The command needs the rights of root.
    NotRoot,
    /// The token is for another node.
    NodeNameDiffers,
    /// The node has settings of another fleet.
    AlreadyJoined,
    /// The present settings cannot be read.
    SettingsUnreadable,
    /// The key cannot be read or written.
    DataDirectoryNotWritable,
    /// There is no connection to the server.
    JoinUnreachable,
    /// The server is not one of the token's authority.
    ServerNotTrusted,
    /// The server refused the token or the request.
    Refused(RefusalReason),
    /// The connection was lost, or the answer came too late.
    AnswerLost,
    /// The answer is not what this version understands.
    AnswerInvalid,
    /// There is no space for a file.
    DiskFull,
    /// A file cannot be written.
    FileNotWritten,
    /// The doctor reported errors.
    DoctorErrors,
    /// The agent did not start.
    NotStarted,
    /// The agent started, and got no index.
    NotSeen,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(reason) => reason.fmt(f),
            other => fmt::Debug::fmt(other, f),
        }
    }
}

/// A join that failed. Its text has what failed, what exists, and how to continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The step in which it failed.
    pub step: Step,
    /// The stable name of the cause.
    pub reason: Reason,
    /// What failed, with the object.
    pub problem: String,
    /// What the operator does to continue.
    pub remedy: String,
}

impl Failure {
    /// Returns the failure of a step.
    pub fn new(
        step: Step,
        reason: Reason,
        problem: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self { step, reason, problem: problem.to_string(), remedy: remedy.into() }
    }

    /// Returns the exit code of the process.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self.reason {
            Reason::TokenMalformed | Reason::UrlInvalid | Reason::NothingToJoin => INVALID,
            _ => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.reason, self.problem)?;
        writeln!(f, "  now: {}", self.step.exists())?;
        write!(f, "  continue: {}", self.remedy)
    }
}

/// The remedy of a failure that the same command may not repeat.
pub const SAME_LINE: &str = "run the same line again";

/// Returns the failure of a file of a step.
#[must_use]
pub fn file_failure(step: Step, path: &Path, error: &std::io::Error) -> Failure {
    let problem = format!("cannot write {}: {error}", path.display());
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            let dir = path.parent().unwrap_or(path).display();
            let remedy = format!("free some space (df -h {dir}), then {SAME_LINE}");
            Failure::new(step, Reason::DiskFull, problem, remedy)
        }
        _ => {
            let remedy = format!("make the directory writable for root, then {SAME_LINE}");
            Failure::new(step, Reason::FileNotWritten, problem, remedy)
        }
    }
}

/// Returns how to continue after the server refused.
#[must_use]
pub fn after_refusal(reason: RefusalReason, node: &str) -> String {
    let enroll = |options: &str| {
        format!("run `neptune-cloud enroll {node}{options}`, and join with the line that it prints")
    };
    match reason {
        RefusalReason::TokenRefused | RefusalReason::TokenExpired => enroll(""),
        RefusalReason::TokenUsed => format!(
            "if that was not this node, run `neptune-cloud revoke {node}`; then {}",
            enroll(" --replace")
        ),
        RefusalReason::NodeKeyKnown | RefusalReason::NodeRevoked => {
            format!("if this machine is to be {node}, {}", enroll(" --replace"))
        }
        RefusalReason::TooManyRequests | RefusalReason::NotReady => {
            format!("wait a minute, then {SAME_LINE}")
        }
        RefusalReason::RequestInvalid => {
            "install the version of neptune-edge that the fleet has, then run the same line again"
                .to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_has_reason_state_and_remedy() {
        let failure = Failure::new(Step::Connect, Reason::JoinUnreachable, "no route", SAME_LINE);
        assert_eq!(
            failure.to_string(),
            "JoinUnreachable: no route\n  now: the node's key; no setting was changed, and the secret of the token \
             was not sent\n  continue: run the same line again"
        );
        assert_eq!(failure.exit_code(), 1);
        let token = Failure::new(Step::Preflight, Reason::TokenMalformed, "", "");
        assert_eq!(token.exit_code(), 2);
    }

    #[test]
    fn refusals_keep_their_name_and_have_a_remedy() {
        use RefusalReason as R;
        for (reason, remedy) in [
            (R::TokenRefused, "`neptune-cloud enroll edge0`"),
            (R::TokenExpired, "`neptune-cloud enroll edge0`"),
            (R::TokenUsed, "`neptune-cloud revoke edge0`"),
            (R::NodeKeyKnown, "`neptune-cloud enroll edge0 --replace`"),
            (R::NodeRevoked, "`neptune-cloud enroll edge0 --replace`"),
            (R::TooManyRequests, "same line"),
            (R::NotReady, "same line"),
            (R::RequestInvalid, "version"),
        ] {
            let text = after_refusal(reason, "edge0");
            assert!(text.contains(remedy), "{reason}: {text}");
            assert_eq!(Reason::Refused(reason).to_string(), reason.to_string());
        }
    }

    #[test]
    fn full_disk_differs_from_a_missing_right() {
        let failed = |kind: std::io::ErrorKind| {
            file_failure(Step::Authority, Path::new("/data/ca.pem"), &kind.into())
        };
        let full = failed(std::io::ErrorKind::StorageFull);
        assert_eq!(full.reason, Reason::DiskFull);
        assert!(full.remedy.contains("df -h /data"), "{}", full.remedy);
        let denied = failed(std::io::ErrorKind::PermissionDenied);
        assert_eq!(denied.reason, Reason::FileNotWritten);
        assert!(denied.problem.contains("/data/ca.pem"), "{}", denied.problem);
    }
}
