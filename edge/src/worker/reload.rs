//! Decides for a worker that reloads other versions of its model while it runs: which versions must
//! be in its directory, which one it is requested to load, and when it is restarted because it did
//! not load it. Only a downloaded model has versions; a model at a path of the node is mounted as
//! it is. Pure.
//!
//! | directory | container | has loaded | then |
//! |---|---|---|---|
//! | without the version | any | | put it there, beside the one that is loaded |
//! | right | none, or of another spec | | as for any worker: it starts with the version |
//! | right | alive | the version | take the others out of the directory |
//! | right | alive | another | it is told; after a while: restart it |

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::{Duration, Instant},
};

use neptune_wire::ObjectName;

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

/// For loading what it was told to load. Then it is restarted.
pub const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// What is remembered of such a worker from one turn to the next.
#[derive(Debug, Default)]
pub struct ReloadState {
    /// What is in its directory, as far as is known.
    pub placed: Option<PlacedVersions>,
    /// The version that it should have.
    pub target: Option<String>,
    /// Which container is to load which version, and since when.
    pub requested: Option<(String, String, Instant)>,
}

/// What is known of it now.
pub struct ReloadFacts<'a> {
    pub wanted: &'a WantedWorker,
    pub model: &'a LocalArtifact,
    pub context: &'a NodeContext,
    /// Its container that is alive and has its spec, if there is one.
    pub running: Option<&'a ObservedContainer>,
    /// What it last said of its model.
    pub reported: Option<&'a ReportedModel>,
    pub now: Instant,
}

/// What follows.
#[derive(Debug, Default, PartialEq)]
pub struct ReloadDecision {
    pub target: String,
    /// What is to be in its directory and is not: the directory, and the versions.
    pub place: Option<(PathBuf, BTreeMap<String, LocalArtifact>)>,
    pub requested: Option<(String, String, Instant)>,
    /// It has not loaded what it was told.
    pub restart: bool,
    pub wake_at: Option<Instant>,
    /// For a person, while it has another version loaded.
    pub note: String,
}

/// Decides.
pub fn decide(state: &ReloadState, facts: &ReloadFacts<'_>, target: String) -> ReloadDecision {
    let ReloadFacts { wanted, model, context, running, reported, now } = *facts;
    let dir = worker_versions_dir(wanted, context);
    let loaded = running.and_then(|container| loaded(container, reported, &wanted.model.name));
    let current = state.placed.as_ref().filter(|placed| placed.dir == dir);
    let mut versions: BTreeMap<_, _> = [(target.clone(), model.clone())].into();
    if let (Some(loaded), Some(current)) = (&loaded, current)
        && *loaded != target
        && current.names.contains(loaded)
    {
        // It is there already: from where is of no interest.
        versions.insert(loaded.clone(), LocalArtifact { path: dir.join(loaded), file: None });
    }
    let names: BTreeSet<String> = versions.keys().cloned().collect();
    let place = current.is_none_or(|current| current.names != names).then_some((dir, versions));
    let is_placed = current.is_some_and(|current| current.names.contains(&target));
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
    decision.wake_at = (!decision.restart).then_some(since + RELOAD_TIMEOUT);
    decision.note = format!("is told to load another version of {}", wanted.model);
    decision.requested = Some((running.id.clone(), target, since));
    decision
}

/// The version of the model that a container has loaded: what it says itself, or else what it was
/// started with.
fn loaded(
    container: &ObservedContainer,
    reported: Option<&ReportedModel>,
    model: &ObjectName,
) -> Option<String> {
    let path = reported.filter(|reported| reported.container == container.id);
    let path = path.and_then(|reported| version_in(&reported.path, model));
    path.map(str::to_owned).or_else(|| container.version.clone())
}

/// The version in a path of the container.
fn version_in<'a>(path: &'a str, model: &ObjectName) -> Option<&'a str> {
    let rest = path.strip_prefix(MODELS_DIR)?.strip_prefix('/')?;
    let rest = rest.strip_prefix(model.as_str())?.strip_prefix('/')?;
    rest.split('/').next().filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::{ModelOutput, WorkerUpdateMode};

    use super::*;
    use crate::{
        fixtures::{node_context, wanted_worker},
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
        let facts = ReloadFacts {
            wanted: &wanted,
            model: &model,
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
    fn new_version_is_placed_beside_the_loaded_one_until_loaded() {
        let now = Instant::now();
        let state =
            |names: &[&str]| ReloadState { placed: Some(placed(names)), ..ReloadState::default() };
        let old = container("old");
        let first = decided(&ReloadState::default(), None, None, now);
        assert_eq!((to_place(&first), first.restart), (Some(vec!["new"]), false));
        let change = decided(&state(&["old"]), Some(&old), None, now);
        assert_eq!(to_place(&change), Some(vec!["new", "old"]));
        assert_eq!(change.requested, None, "it is told when the version is there");
        let requested = decided(&state(&["new", "old"]), Some(&old), None, now);
        assert_eq!(to_place(&requested), None);
        assert_eq!(requested.requested, Some(("c1".into(), "new".into(), now)));
        assert_eq!((requested.wake_at, requested.restart), (Some(now + RELOAD_TIMEOUT), false));
        let reported = reported("c1", "/models/m/new/m.pb");
        let loaded = decided(&state(&["new", "old"]), Some(&old), Some(&reported), now);
        assert_eq!(to_place(&loaded), Some(vec!["new"]));
        assert_eq!((loaded.requested, loaded.note.as_str()), (None, ""));
        let done = decided(&state(&["new"]), Some(&old), Some(&reported), now);
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
            "another's word"
        );
        let another = ObservedContainer { id: "c2".into(), ..old.clone() };
        let fresh = decided(&state, Some(&another), None, start + RELOAD_TIMEOUT);
        assert!(
            !fresh.restart && fresh.wake_at == Some(start + RELOAD_TIMEOUT * 2),
            "its own time"
        );
    }

    #[test]
    fn return_to_the_initial_version_is_a_reload_too() {
        let state =
            ReloadState { placed: Some(placed(&["new", "other"])), ..ReloadState::default() };
        let started_with = container("new");
        let reported = reported("c1", "/models/m/other/m.pb");
        let decision = decided(&state, Some(&started_with), Some(&reported), Instant::now());
        assert!(decision.requested.is_some());
        assert!(decided(&state, Some(&started_with), None, Instant::now()).requested.is_none());
    }

    #[test]
    fn only_downloaded_models_have_versions_one_per_content() {
        let (wanted, context) = (reloading(), node_context());
        let of = |path: &str, file: &str| {
            reloadable_version(
                &wanted,
                &LocalArtifact { path: path.into(), file: Some(file.into()) },
                &context,
            )
        };
        let name = of("/var/lib/neptune/models/sha256/ab/m", "m.pb").unwrap();
        assert_eq!(name.len(), 16);
        assert_ne!(of("/var/lib/neptune/models/sha256/cd/m", "m.pb").unwrap(), name);
        assert_ne!(of("/var/lib/neptune/models/sha256/ab/m", "n.pb").unwrap(), name);
        assert_eq!(of("/model/m.pb", "m.pb"), None);
        assert_eq!(reloadable_version(&crate::fixtures::wanted_worker(), &model(), &context), None);
        let strange = WantedWorker { uid: "../x".into(), ..reloading() };
        assert_eq!(reloadable_version(&strange, &model(), &context), None);
    }

    #[test]
    fn model_version_is_read_from_the_path() {
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
