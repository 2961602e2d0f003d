//! Decides for a worker that loads another version of its model while it runs: which versions are to
//! be in its directory, what it is told, and when it is restarted because it has not loaded what it
//! was told. Only a model of the store has versions; one at a path of the node is mounted as it is.
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

use neptune_wire::{ContentHash, ObjectName, WorkerUpdateMode};

use crate::{
    container::{MODELS_IN_CONTAINER, Site},
    desired::Wanted,
    edition::{Supplied, is_plain_name},
    observed::Container,
    place::Versions,
    spoken::Spoken,
};

/// Below the data directory, a directory of versions for each worker that reloads.
pub const WORKERS: &str = "workers";
/// For loading what it was told to load. Then it is restarted.
pub const WITHIN: Duration = Duration::from_secs(60);

/// What is remembered of such a worker from one turn to the next.
#[derive(Debug, Default)]
pub struct Reloading {
    /// What is in its directory, as far as is known.
    pub placed: Option<Versions>,
    /// The version that it should have.
    pub target: Option<String>,
    /// Which container is to load which version, and since when.
    pub asked: Option<(String, String, Instant)>,
}

/// What is known of it now.
pub struct Facts<'a> {
    pub wanted: &'a Wanted,
    pub model: &'a Supplied,
    pub site: &'a Site,
    /// Its container that is alive and has its spec, if there is one.
    pub running: Option<&'a Container>,
    /// What it last said of its model.
    pub spoken: Option<&'a Spoken>,
    pub now: Instant,
}

/// What follows.
#[derive(Debug, Default, PartialEq)]
pub struct Decision {
    pub target: String,
    /// What is to be in its directory and is not: the directory, and the versions.
    pub place: Option<(PathBuf, BTreeMap<String, Supplied>)>,
    pub asked: Option<(String, String, Instant)>,
    /// It has not loaded what it was told.
    pub restart: bool,
    pub wake_at: Option<Instant>,
    /// For a person, while it has another version loaded.
    pub note: String,
}

/// Decides.
pub fn decide(memory: &Reloading, facts: &Facts<'_>, target: String) -> Decision {
    let Facts { wanted, model, site, running, spoken, now } = *facts;
    let dir = dir(wanted, site);
    let loaded = running.and_then(|container| loaded(container, spoken, &wanted.model.name));
    let here = memory.placed.as_ref().filter(|placed| placed.dir == dir);
    let mut versions: BTreeMap<_, _> = [(target.clone(), model.clone())].into();
    if let (Some(loaded), Some(here)) = (&loaded, here)
        && *loaded != target
        && here.names.contains(loaded)
    {
        // It is there already: from where is of no interest.
        versions.insert(loaded.clone(), Supplied { path: dir.join(loaded), file: None });
    }
    let names: BTreeSet<String> = versions.keys().cloned().collect();
    let place = here.is_none_or(|here| here.names != names).then_some((dir, versions));
    let is_there = here.is_some_and(|here| here.names.contains(&target));
    let mut decision = Decision { place, target: target.clone(), ..Decision::default() };
    let Some(running) = running.filter(|_| is_there && loaded.as_ref() != Some(&target)) else {
        return decision;
    };
    let since = match &memory.asked {
        Some((container, version, since)) if *container == running.id && *version == target => {
            *since
        }
        _ => now,
    };
    decision.restart = now >= since + WITHIN;
    decision.wake_at = (!decision.restart).then_some(since + WITHIN);
    decision.note = format!("is told to load another version of {}", wanted.model);
    decision.asked = Some((running.id.clone(), target, since));
    decision
}

/// The version of the model that a container has loaded: what it says itself, or else what it was
/// started with.
fn loaded(container: &Container, spoken: Option<&Spoken>, model: &ObjectName) -> Option<String> {
    let said = spoken.filter(|spoken| spoken.container == container.id);
    let said = said.and_then(|spoken| version_in(&spoken.said, model));
    said.map(str::to_owned).or_else(|| container.version.clone())
}

/// The version in a path of the container.
fn version_in<'a>(path: &'a str, model: &ObjectName) -> Option<&'a str> {
    let rest = path.strip_prefix(MODELS_IN_CONTAINER)?.strip_prefix('/')?;
    let rest = rest.strip_prefix(model.as_str())?.strip_prefix('/')?;
    rest.split('/').next().filter(|version| !version.is_empty())
}

/// The name of this version of a worker's model, if the worker loads versions while it runs.
pub fn version(wanted: &Wanted, model: &Supplied, site: &Site) -> Option<String> {
    let can_reload = wanted.worker.model_update == WorkerUpdateMode::Reload
        && model.path.starts_with(&site.data_dir)
        && is_plain_name(&wanted.uid);
    // What is in the store is found by its content's digest, which is part of the path.
    let content = [model.path.to_string_lossy(), model.file.as_deref().unwrap_or_default().into()];
    can_reload.then(|| ContentHash::of(&content).as_str()[..16].to_owned())
}

/// The node's directory of a worker's versions.
pub fn dir(wanted: &Wanted, site: &Site) -> PathBuf {
    site.data_dir.join(WORKERS).join(&wanted.uid).join(wanted.worker.name.as_str())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_wire::ModelOutput;

    use super::*;
    use crate::container::tests::{site, wanted};

    fn reloading() -> Wanted {
        let mut wanted = wanted();
        wanted.worker.model_update = WorkerUpdateMode::Reload;
        wanted
    }

    fn model() -> Supplied {
        Supplied { path: "/var/lib/neptune/models/sha256/ab/m".into(), file: Some("m.pb".into()) }
    }

    fn container(version: &str) -> Container {
        let mut container = crate::observed::tests::container("c1");
        container.version = Some(version.to_owned());
        container
    }

    fn spoken(container: &str, said: &str) -> Spoken {
        let output = ModelOutput {
            model: "m".parse().unwrap(),
            uid: "u".into(),
            format: String::new(),
            url: String::new(),
            sha256: None,
            metrics: Vec::new(),
            time: String::new(),
        };
        Spoken { output, said: said.to_owned(), container: container.to_owned() }
    }

    fn placed(names: &[&str]) -> Versions {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Versions { dir: dir(&reloading(), &site()), names }
    }

    fn decided(
        memory: &Reloading,
        running: Option<&Container>,
        spoken: Option<&Spoken>,
        now: Instant,
    ) -> Decision {
        let (wanted, model, site) = (reloading(), model(), site());
        let facts = Facts { wanted: &wanted, model: &model, site: &site, running, spoken, now };
        decide(memory, &facts, "new".to_owned())
    }

    fn to_place(decision: &Decision) -> Option<Vec<&str>> {
        let versions = decision.place.as_ref().map(|(_, versions)| versions);
        versions.map(|versions| versions.keys().map(String::as_str).collect())
    }

    #[test]
    fn a_version_stands_beside_the_one_that_is_loaded_until_it_is_loaded_itself() {
        let now = Instant::now();
        let memory =
            |names: &[&str]| Reloading { placed: Some(placed(names)), ..Reloading::default() };
        let old = container("old");
        let first = decided(&Reloading::default(), None, None, now);
        assert_eq!((to_place(&first), first.restart), (Some(vec!["new"]), false));
        let change = decided(&memory(&["old"]), Some(&old), None, now);
        assert_eq!(to_place(&change), Some(vec!["new", "old"]));
        assert_eq!(change.asked, None, "it is told when the version is there");
        let asked = decided(&memory(&["new", "old"]), Some(&old), None, now);
        assert_eq!(to_place(&asked), None);
        assert_eq!(asked.asked, Some(("c1".into(), "new".into(), now)));
        assert_eq!((asked.wake_at, asked.restart), (Some(now + WITHIN), false));
        let says = spoken("c1", "/models/m/new/m.pb");
        let loaded = decided(&memory(&["new", "old"]), Some(&old), Some(&says), now);
        assert_eq!(to_place(&loaded), Some(vec!["new"]));
        assert_eq!((loaded.asked, loaded.note.as_str()), (None, ""));
        let done = decided(&memory(&["new"]), Some(&old), Some(&says), now);
        assert_eq!(done, Decision { target: "new".into(), ..Decision::default() });
    }

    #[test]
    fn who_does_not_load_it_in_time_is_restarted() {
        let start = Instant::now();
        let asked = Some(("c1".to_owned(), "new".to_owned(), start));
        let memory =
            Reloading { placed: Some(placed(&["new", "old"])), asked, ..Reloading::default() };
        let old = container("old");
        let at = |now, spoken: Option<&Spoken>| decided(&memory, Some(&old), spoken, now).restart;
        assert!(!at(start + WITHIN / 2, None));
        assert!(at(start + WITHIN, None));
        assert!(at(start + WITHIN, Some(&spoken("c1", "/models/m/old/m.pb"))));
        assert!(!at(start + WITHIN, Some(&spoken("c1", "/models/m/new/m.pb"))));
        assert!(at(start + WITHIN, Some(&spoken("c0", "/models/m/new/m.pb"))), "another's word");
        let another = Container { id: "c2".into(), ..old.clone() };
        let fresh = decided(&memory, Some(&another), None, start + WITHIN);
        assert!(!fresh.restart && fresh.wake_at == Some(start + WITHIN * 2), "its own time");
    }

    #[test]
    fn back_to_the_version_it_was_started_with_is_a_change_too() {
        let memory = Reloading { placed: Some(placed(&["new", "other"])), ..Reloading::default() };
        let started_with = container("new");
        let says = spoken("c1", "/models/m/other/m.pb");
        let decision = decided(&memory, Some(&started_with), Some(&says), Instant::now());
        assert!(decision.asked.is_some());
        assert!(decided(&memory, Some(&started_with), None, Instant::now()).asked.is_none());
    }

    #[test]
    fn only_a_model_of_the_store_has_versions_and_each_content_its_own() {
        let (wanted, site) = (reloading(), site());
        let of = |path: &str, file: &str| {
            version(&wanted, &Supplied { path: path.into(), file: Some(file.into()) }, &site)
        };
        let name = of("/var/lib/neptune/models/sha256/ab/m", "m.pb").unwrap();
        assert_eq!(name.len(), 16);
        assert_ne!(of("/var/lib/neptune/models/sha256/cd/m", "m.pb").unwrap(), name);
        assert_ne!(of("/var/lib/neptune/models/sha256/ab/m", "n.pb").unwrap(), name);
        assert_eq!(of("/model/m.pb", "m.pb"), None);
        assert_eq!(version(&crate::container::tests::wanted(), &model(), &site), None);
        let strange = Wanted { uid: "../x".into(), ..reloading() };
        assert_eq!(version(&strange, &model(), &site), None);
    }

    #[test]
    fn a_path_tells_its_version() {
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
