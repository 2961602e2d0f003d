//! Decides whether a download may run now, and what to report of one that may not.

use std::collections::BTreeSet;

use neptune_sources::ArtifactLocation;
use neptune_wire::WorkerReason;

use crate::{
    domain::{artifact::ArtifactSource, problem::Problem},
    downloads::WindowState,
};

/// Which downloads may run now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadGate {
    /// All downloads may run.
    Open,
    /// Those may run that need no server, and these sources.
    Closed {
        /// The sources that do not wait.
        urgent: BTreeSet<ArtifactSource>,
        /// The hour and the minute at which the others may run; `None` before the first decision.
        opens: Option<(u32, u32)>,
    },
}

impl DownloadGate {
    /// The gate of a node with windows until it has decided which downloads wait.
    pub fn undecided() -> Self {
        Self::Closed { urgent: BTreeSet::new(), opens: None }
    }

    /// The gate of the present state of the windows.
    pub fn new(state: WindowState, urgent: impl FnOnce() -> BTreeSet<ArtifactSource>) -> Self {
        match state {
            WindowState::Open => Self::Open,
            WindowState::Closed { opens } => Self::Closed { urgent: urgent(), opens: Some(opens) },
        }
    }

    /// Whether the download of a source may run.
    pub fn admits(&self, source: &ArtifactSource) -> bool {
        let is_local =
            || matches!(ArtifactLocation::parse(&source.url), Ok(ArtifactLocation::File(_)));
        match self {
            Self::Open => true,
            Self::Closed { urgent, .. } => urgent.contains(source) || is_local(),
        }
    }

    /// What to report of a download that may not run; `None` if that is not known yet.
    pub fn problem(&self) -> Option<Problem> {
        match self {
            Self::Open | Self::Closed { opens: None, .. } => None,
            Self::Closed { opens: Some((hour, minute)), .. } => Some(Problem {
                reason: WorkerReason::DownloadWindow,
                message: format!(
                    "the download starts at {hour:02}:{minute:02} (--download-window)"
                ),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn source(url: &str) -> ArtifactSource {
        ArtifactSource { namespace: "default".parse().unwrap(), url: url.into(), sha256: None }
    }

    #[test]
    fn closed_gate_admits_urgent_sources_and_files_of_the_node() {
        let closed = WindowState::Closed { opens: (1, 5) };
        let gate = DownloadGate::new(closed, || [source("http://h/urgent")].into());
        for (url, is_admitted) in [
            ("http://h/urgent", true),
            ("http://h/other", false),
            ("s3://bucket/other", false),
            ("file:///models/m", true),
            ("/models/m", true),
        ] {
            assert_eq!(gate.admits(&source(url)), is_admitted, "{url}");
            assert!(DownloadGate::Open.admits(&source(url)), "{url}");
            assert_eq!(
                DownloadGate::undecided().admits(&source(url)),
                is_admitted && !url.starts_with("http"),
                "{url}"
            );
        }
    }

    #[test]
    fn waiting_download_names_the_time_at_which_it_starts() {
        let gate = DownloadGate::new(WindowState::Closed { opens: (1, 5) }, BTreeSet::new);
        let problem = gate.problem().unwrap();
        assert_eq!(problem.reason, WorkerReason::DownloadWindow);
        assert_eq!(problem.message, "the download starts at 01:05 (--download-window)");
        assert_eq!(DownloadGate::new(WindowState::Open, BTreeSet::new), DownloadGate::Open);
        assert_eq!(DownloadGate::Open.problem(), None);
        assert_eq!(DownloadGate::undecided().problem(), None);
    }
}
