//! Decides for a worker that reloads its model while it runs: the versions in its directory, the
//! version to request, and the restart if it does not load it in time. Only downloaded models have
//! versions; a model at a local path is mounted directly.
//!
//! | directory | container | loaded version | then |
//! |---|---|---|---|
//! | without the target | any | | place the target beside the loaded version |
//! | has the target | none, or of another spec | | as for any worker: it starts with the target |
//! | has the target | alive | target | remove the others from the directory |
//! | has the target | alive | another | request the target; after [`RELOAD_TIMEOUT`] restart it |

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use neptune_wire::{ObjectKey, ObjectName};

use crate::{
    desired::WantedWorker,
    domain::{
        artifact::{LocalArtifact, PlacedVersions},
        node_context::NodeContext,
        observed_container::ObservedContainer,
        worker_count::ReportedModel,
    },
    worker::container::{MODELS_DIR, worker_versions_dir},
};

/// Time for a worker to load the requested version. Then it is restarted.
pub const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The state of a reloading worker between two turns.
#[derive(Debug, Default)]
pub struct ReloadState {
    /// The versions in its directory; `None` if unknown.
    pub placed: Option<PlacedVersions>,
    /// The version that it must load.
    pub target: Option<String>,
    /// The container ID, the version requested from it, and the time of the request.
    pub requested: Option<(String, String, Instant)>,
}

/// The facts of a decision.
pub struct ReloadFacts<'a> {
    pub wanted: &'a WantedWorker,
    pub model: (&'a ObjectKey, &'a LocalArtifact),
    pub context: &'a NodeContext,
    /// The worker's running container with the wanted specification; `None` if none runs.
    pub running: Option<&'a ObservedContainer>,
    /// The worker's last report on its model; `None` before the first one.
    pub reported: Option<&'a ReportedModel>,
    pub now: Instant,
}

/// What to do with the versions of one worker now.
#[derive(Debug, Default, PartialEq)]
pub struct ReloadDecision {
    pub target: String,
    /// The directory and the versions to place in it, if it has others.
    pub place: Option<(PathBuf, BTreeMap<String, LocalArtifact>)>,
    /// The new value of [`ReloadState::requested`].
    pub requested: Option<(String, String, Instant)>,
    /// Whether to restart the worker because it did not load the version in time.
    pub restart: bool,
    pub next_at: Option<Instant>,
    /// Remark for people while another version is loaded.
    pub note: String,
}

/// Decides the versions in the directory, the request and the restart.
pub fn decide(state: &ReloadState, facts: &ReloadFacts<'_>, target: String) -> ReloadDecision {
    let ReloadFacts { wanted, model: (key, model), context, running, reported, now } = *facts;
    let dir = worker_versions_dir(wanted, context);
    let loaded = running.and_then(|container| loaded(container, reported, &key.name));
    let placed = state.placed.as_ref().filter(|placed| placed.dir == dir);
    let mut versions: BTreeMap<_, _> = [(target.clone(), model.clone())].into();
    if let (Some(loaded), Some(placed)) = (&loaded, placed)
        && *loaded != target
        && placed.names.contains(loaded)
    {
        // It is in the directory already, so its source is not used.
        versions.insert(loaded.clone(), LocalArtifact { path: dir.join(loaded), file: None });
    }
    let names: BTreeSet<String> = versions.keys().cloned().collect();
    let place = placed.is_none_or(|placed| placed.names != names).then_some((dir, versions));
    let is_placed = placed.is_some_and(|placed| placed.names.contains(&target));
    let mut decision =
        ReloadDecision { place, target: target.clone(), ..ReloadDecision::default() };
    let Some(running) = running.filter(|_| is_placed && loaded.as_ref() != Some(&target)) else {
        return decision;
    };
    let since = match &state.requested {
        Some((container, version, since)) if *container == running.id && *version == target => {
            *since
        }
        _ => now,
    };
    decision.restart = now >= since + RELOAD_TIMEOUT;
    decision.next_at = (!decision.restart).then_some(since + RELOAD_TIMEOUT);
    decision.note = format!("waiting for the worker to load another version of {key}");
    decision.requested = Some((running.id.clone(), target, since));
    decision
}

/// The version of the model that a container has loaded: the one that it reported, or else the one
/// that it was started with.
fn loaded(
    container: &ObservedContainer,
    reported: Option<&ReportedModel>,
    model: &ObjectName,
) -> Option<String> {
    let reported = reported.filter(|reported| reported.container == container.id);
    let version = reported.and_then(|reported| version_in(&reported.path, model));
    version.map(str::to_owned).or_else(|| container.version.clone())
}

/// The version in a model path of the container.
fn version_in<'a>(path: &'a str, model: &ObjectName) -> Option<&'a str> {
    let rest = path.strip_prefix(MODELS_DIR)?.strip_prefix('/')?;
    let rest = rest.strip_prefix(model.as_str())?.strip_prefix('/')?;
    rest.split('/').next().filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use neptune_wire::{ModelOutput, WorkerUpdateMode};

    use super::*;
    use crate::{
        fixtures::{model_key, node_context, wanted_worker},
        worker::container::reloadable_version,
    };

    fn reloading() -> WantedWorker {
        let mut wanted = wanted_worker();
        wanted.worker.model_update = WorkerUpdateMode::Reload;
        wanted
    }

    fn model() -> LocalArtifact {
        LocalArtifact {
            path: "/var/lib/neptune/models/sha256/ab/m".into(),
            file: Some("m.pb".into()),
        }
    }

    fn container(version: &str) -> ObservedContainer {
        let mut container = crate::fixtures::observed_container("c1");
        container.version = Some(version.to_owned());
        container
    }

    fn reported(container: &str, path: &str) -> ReportedModel {
        let output = ModelOutput {
            model: "m".parse().unwrap(),
            uid: "u".into(),
            format: String::new(),
            url: String::new(),
            sha256: None,
            metrics: Vec::new(),
            time: String::new(),
        };
        ReportedModel { output, path: path.to_owned(), container: container.to_owned() }
    }

    fn placed(names: &[&str]) -> PlacedVersions {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        PlacedVersions { dir: worker_versions_dir(&reloading(), &node_context()), names }
    }

    fn decided(
        state: &ReloadState,
        running: Option<&ObservedContainer>,
        reported: Option<&ReportedModel>,
        now: Instant,
    ) -> ReloadDecision {
        let (wanted, model, context) = (reloading(), model(), node_context());
        let key = model_key();
        let facts = ReloadFacts {
            wanted: &wanted,
            model: (&key, &model),
            context: &context,
            running,
            reported,
            now,
        };
        decide(state, &facts, "new".to_owned())
    }

    fn to_place(decision: &ReloadDecision) -> Option<Vec<&str>> {
        let versions = decision.place.as_ref().map(|(_, versions)| versions);
        versions.map(|versions| versions.keys().map(String::as_str).collect())
    }

    #[test]
    fn loaded_version_stays_placed_until_target_is_loaded() {
        let now = Instant::now();
        let state =
            |names: &[&str]| ReloadState { placed: Some(placed(names)), ..ReloadState::default() };
        let old = container("old");
        let first = decided(&ReloadState::default(), None, None, now);
        assert_eq!((to_place(&first), first.restart), (Some(vec!["new"]), false));
        let change = decided(&state(&["old"]), Some(&old), None, now);
        assert_eq!(to_place(&change), Some(vec!["new", "old"]));
        assert_eq!(change.requested, None, "requested only after it is placed");
        let requested = decided(&state(&["new", "old"]), Some(&old), None, now);
        assert_eq!(to_place(&requested), None);
        assert_eq!(requested.requested, Some(("c1".into(), "new".into(), now)));
        assert_eq!((requested.next_at, requested.restart), (Some(now + RELOAD_TIMEOUT), false));
        let report = reported("c1", "/models/m/new/m.pb");
        let loaded = decided(&state(&["new", "old"]), Some(&old), Some(&report), now);
        assert_eq!(to_place(&loaded), Some(vec!["new"]));
        assert_eq!((loaded.requested, loaded.note.as_str()), (None, ""));
        let done = decided(&state(&["new"]), Some(&old), Some(&report), now);
        assert_eq!(done, ReloadDecision { target: "new".into(), ..ReloadDecision::default() });
    }

    #[test]
    fn worker_that_does_not_load_in_time_is_restarted() {
        let start = Instant::now();
        let requested = Some(("c1".to_owned(), "new".to_owned(), start));
        let state = ReloadState {
            placed: Some(placed(&["new", "old"])),
            requested,
            ..ReloadState::default()
        };
        let old = container("old");
        let at = |now, reported: Option<&ReportedModel>| {
            decided(&state, Some(&old), reported, now).restart
        };
        assert!(!at(start + RELOAD_TIMEOUT / 2, None));
        assert!(at(start + RELOAD_TIMEOUT, None));
        assert!(at(start + RELOAD_TIMEOUT, Some(&reported("c1", "/models/m/old/m.pb"))));
        assert!(!at(start + RELOAD_TIMEOUT, Some(&reported("c1", "/models/m/new/m.pb"))));
        assert!(
            at(start + RELOAD_TIMEOUT, Some(&reported("c0", "/models/m/new/m.pb"))),
            "a report of another container"
        );
        let another = ObservedContainer { id: "c2".into(), ..old.clone() };
        let fresh = decided(&state, Some(&another), None, start + RELOAD_TIMEOUT);
        assert!(
            !fresh.restart && fresh.next_at == Some(start + RELOAD_TIMEOUT * 2),
            "the timeout starts again"
        );
    }

    #[test]
    fn return_to_initial_version_is_requested() {
        let state =
            ReloadState { placed: Some(placed(&["new", "other"])), ..ReloadState::default() };
        let started_with = container("new");
        let report = reported("c1", "/models/m/other/m.pb");
        let decision = decided(&state, Some(&started_with), Some(&report), Instant::now());
        assert!(decision.requested.is_some());
        assert!(decided(&state, Some(&started_with), None, Instant::now()).requested.is_none());
    }

    #[test]
    fn only_downloaded_model_has_version_and_it_depends_on_content() {
        let (wanted, context) = (reloading(), node_context());
        let version = |path: &str, file: &str| {
            reloadable_version(
                &wanted,
                &LocalArtifact { path: path.into(), file: Some(file.into()) },
                &context,
            )
        };
        let name = version("/var/lib/neptune/models/sha256/ab/m", "m.pb").unwrap();
        assert_eq!(name.len(), 16);
        assert_ne!(version("/var/lib/neptune/models/sha256/cd/m", "m.pb").unwrap(), name);
        assert_ne!(version("/var/lib/neptune/models/sha256/ab/m", "n.pb").unwrap(), name);
        assert_eq!(version("/model/m.pb", "m.pb"), None);
        assert_eq!(reloadable_version(&crate::fixtures::wanted_worker(), &model(), &context), None);
        let unsafe_uid = WantedWorker { uid: "../x".into(), ..reloading() };
        assert_eq!(reloadable_version(&unsafe_uid, &model(), &context), None);
    }

    #[test]
    fn version_is_read_from_path() {
        let model = "m".parse().unwrap();
        for (path, version) in [
            ("/models/m/0f/m.pb", Some("0f")),
            ("/models/m/0f", Some("0f")),
            ("/models/m/", None),
            ("/models/m2/0f", None),
            ("0f", None),
            ("", None),
        ] {
            assert_eq!(version_in(path, &model), version, "{path}");
        }
    }
}
