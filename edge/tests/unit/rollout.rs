//! The rollout of a model server in a simulated world, half a second per step: each version behaves
//! as given, and the decisions are checked.

#![allow(clippy::unwrap_used)]
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_edge::{
    domain::{
        artifact::{DownloadState, ImageState},
        problem::Problem,
        rollout::RolloutState,
        served_version::ServedVersion,
    },
    model_server::{
        probe::ProbeHistory,
        rollout::{InstanceState, RolloutDecision, RolloutFacts, can_follow, decide},
    },
};
use neptune_wire::{
    ContentHash, DownloadProgress, ModelServer, ModelServerReport, ServerUpdateMode, Transition,
    WorkerReason,
};
use proptest::prelude::*;
use serde_json::json;

const STEP: Duration = Duration::from_millis(500);

/// What a version does once it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Good,
    /// Docker refuses its container.
    NeverStarts,
    /// Its container ends after so many seconds, well until then.
    Crashes(u64),
    /// It runs, and its check is never good.
    NeverWell,
    /// Its check is good from 2 s on, and bad after so many seconds.
    Sickens(u64),
    /// Every third check is bad.
    Unsteady,
}

struct World {
    fates: BTreeMap<String, Fate>,
    state: RolloutState,
    target: ModelServer,
    download: DownloadState,
    image: ImageState,
    now: Instant,
    /// The edition that runs, since when, and whether it has ended.
    running: Option<(String, Instant, bool)>,
    probes: ProbeHistory,
    status: ModelServerReport,
    restarts: u32,
    switches: Vec<String>,
    asked: u32,
}

fn world(fates: &[(&str, Fate)], target: &str) -> World {
    let start = Instant::now();
    World {
        fates: fates.iter().map(|(version, fate)| ((*version).to_owned(), *fate)).collect(),
        state: RolloutState::default(),
        target: serving(target, "replace"),
        download: DownloadState::Ready,
        image: ImageState::Ready,
        now: start,
        running: None,
        probes: ProbeHistory::new(start),
        status: ModelServerReport::default(),
        restarts: 0,
        switches: Vec::new(),
        asked: 0,
    }
}

/// A server of a version, with this `reload` mode.
fn serving(version: &str, reload: &str) -> ModelServer {
    serde_json::from_value(json!({
        "name": "m-server-1", "modelName": "m", "image": "i", "port": 8501, "reload": reload,
        "env": {"A": "b"},
        "model": {"version": version, "url": format!("http://h/{version}.tar"), "directory": "/models/m"},
        "health": {"httpPath": "/v/{version}", "periodMs": 1000, "timeoutMs": 500, "startWithinMs": 60_000, "probationMs": 30_000},
    }))
    .unwrap()
}

fn coming() -> DownloadState {
    let progress =
        DownloadProgress { received_bytes: 1, total_bytes: Some(2), bytes_per_second: 1 };
    DownloadState::InProgress { progress, problem: None }
}

impl World {
    fn fate(&self) -> Option<Fate> {
        self.state.current.as_ref().map(|current| self.fates[current.version()])
    }

    /// Lets the node do what was decided, and half a second pass.
    fn step(&mut self) {
        let current = self.state.current.as_ref().map(|current| current.id().to_owned());
        if self.running.as_ref().map(|(id, ..)| id) != current.as_ref() {
            self.running = current.map(|id| (id, self.now, false));
            self.probes = ProbeHistory::new(self.now);
        }
        self.now += STEP;
        let fate = self.fate();
        let Some((_, since, has_ended)) = &mut self.running else { return self.decide(None) };
        let age = self.now.duration_since(*since).as_secs();
        match fate.unwrap() {
            Fate::NeverStarts => return self.decide(Some("ContainerRefused")),
            Fate::Crashes(after) if *has_ended || age >= after => {
                *has_ended = !*has_ended;
                if *has_ended {
                    return self.decide(Some("CrashLoopBackOff"));
                }
                *since = self.now;
                self.probes = ProbeHistory::new(self.now);
            }
            _ => {}
        }
        self.asked += 1;
        let is_well = match fate.unwrap() {
            Fate::Good | Fate::Crashes(_) => true,
            Fate::NeverStarts | Fate::NeverWell => false,
            Fate::Sickens(after) => age >= 2 && age < after,
            Fate::Unsteady => !self.asked.is_multiple_of(3),
        };
        let answer = if is_well { Ok(()) } else { Err("the answer is 404".to_owned()) };
        let health = self.state.current.as_ref().unwrap().serving.health.clone();
        self.probes.record(answer, &health, self.now);
        self.decide(None);
    }

    fn decide(&mut self, down: Option<&str>) {
        for round in 0.. {
            assert!(round < 4, "it settles");
            let is_current = round == 0 && self.running.is_some();
            let current = match down {
                Some(reason) if is_current => InstanceState::Down { reason, message: "why" },
                None if is_current => InstanceState::Up(&self.probes),
                _ => InstanceState::Absent(None),
            };
            let good = if self.state.last_good == self.state.current {
                current
            } else {
                InstanceState::Absent(None)
            };
            let facts = RolloutFacts {
                target: &self.target,
                refusal: None,
                download: self.download.clone(),
                image: self.image.clone(),
                current,
                last_good: good,
                draining: InstanceState::Absent(None),
                failures: 0,
                now: self.now,
                wall: "then",
            };
            let decision = decide(&self.state, &facts);
            if decision.restart {
                self.restarts += 1;
                self.running = None;
            }
            let before = std::mem::replace(&mut self.state, decision.state);
            self.status = decision.report;
            self.keeps_what_it_returns_to(&before);
            if self.state == before {
                break;
            }
            // What is stored is read back as it was.
            let text = serde_json::to_string(&self.state).unwrap();
            assert_eq!(serde_json::from_str::<RolloutState>(&text).unwrap(), self.state);
            if self.state.current != before.current {
                self.switches.push(self.state.current.as_ref().unwrap().version().to_owned());
            }
        }
    }

    /// The last good version and the running one are never let go, but for a better one.
    fn keeps_what_it_returns_to(&self, before: &RolloutState) {
        let kept: Vec<&str> = self.state.kept_versions().map(ServedVersion::id).collect();
        assert!(before.last_good.is_none() || self.state.last_good.is_some());
        for version in self.state.current.iter().chain(&self.state.last_good) {
            assert!(kept.contains(&version.id()));
        }
        if self.state.last_good != before.last_good {
            assert_eq!(self.state.last_good, before.current, "only what was tried becomes good");
        }
    }

    fn run(&mut self, seconds: u64) -> &mut Self {
        for _ in 0..2 * seconds {
            self.step();
        }
        self
    }

    fn want(&mut self, version: &str) -> &mut Self {
        self.target = serving(version, "replace");
        self
    }

    fn shown(&self) -> (Option<&str>, Transition, Option<&str>) {
        let status = &self.status;
        (status.serving_version.as_deref(), status.transition, status.last_good_version.as_deref())
    }
}

#[test]
fn healthy_version_passes_its_trial_and_becomes_last_good() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::Good)], "4");
    assert_eq!(world.run(5).shown(), (Some("4"), Transition::InProgress, None));
    assert_eq!(world.run(30).shown(), (Some("4"), Transition::UpToDate, Some("4")));
    assert_eq!(world.want("3").run(5).shown(), (Some("3"), Transition::InProgress, Some("4")));
    assert_eq!(world.run(30).shown(), (Some("3"), Transition::UpToDate, Some("3")));
    assert_eq!(world.switches, ["4", "3"]);
    assert_eq!(world.status.message, "");
}

#[test]
fn every_kind_of_failure_rolls_back_to_last_good() {
    for (fate, reason) in [
        (Fate::NeverStarts, "ContainerRefused"),
        (Fate::Crashes(1), "CrashLoopBackOff"),
        (Fate::Crashes(29), "CrashLoopBackOff"),
        (Fate::NeverWell, "HealthCheckFailed"),
        (Fate::Sickens(20), "HealthCheckFailed"),
        (Fate::Unsteady, "HealthCheckFailed"),
    ] {
        let mut world = world(&[("3", Fate::Good), ("4", fate)], "3");
        world.run(40);
        world.want("4").run(200);
        let expected = (Some("3"), Transition::BlockedByFailedLoad, Some("3"));
        assert_eq!(world.shown(), expected, "{fate:?}: {:?}", world.status);
        assert_eq!(world.switches, ["3", "4", "3"], "{fate:?}: tried once");
        let failure = world.status.last_failure.as_ref().unwrap();
        assert_eq!((failure.version.as_str(), failure.reason.as_str()), ("4", reason));
        assert!(world.status.message.contains("returned to 3"), "{}", world.status.message);

        // Blocked until something else is wanted; then it may be tried again.
        assert_eq!(world.want("3").run(2).shown().1, Transition::UpToDate);
        world.fates.insert("4".into(), Fate::Good);
        assert_eq!(world.want("4").run(40).shown().1, Transition::UpToDate, "{fate:?}");
    }
}

#[test]
fn change_of_other_target_fields_starts_a_trial() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::NeverWell)], "3");
    world.run(40);
    world.want("4").run(100);
    world.fates.insert("4".into(), Fate::Good);
    assert_eq!(world.run(100).shown().1, Transition::BlockedByFailedLoad, "it stays");
    world.target.model.as_mut().unwrap().sha256 = Some("00".repeat(32));
    assert_eq!(world.run(40).shown(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn rollback_to_a_broken_version_is_reported() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::NeverWell)], "3");
    world.run(40);
    world.fates.insert("3".into(), Fate::NeverWell);
    world.want("4").run(200);
    assert_eq!(world.shown(), (None, Transition::BlockedByFailedLoad, Some("3")));
    let message = &world.status.message;
    assert!(
        message.contains("4 failed") && message.contains("returned to 3, which does not answer"),
        "{message}"
    );
    assert_eq!(world.switches, ["3", "4", "3"], "not to and fro");
    assert!(world.restarts > 0, "what hangs is started again");
    world.fates.insert("3".into(), Fate::Good);
    assert_eq!(world.run(10).shown(), (Some("3"), Transition::BlockedByFailedLoad, Some("3")));
}

#[test]
fn first_version_that_fails_is_retried_indefinitely() {
    for fate in [Fate::NeverStarts, Fate::Crashes(3), Fate::NeverWell, Fate::Sickens(10)] {
        let mut world = world(&[("3", fate)], "3");
        world.run(200);
        assert_eq!(world.shown().1, Transition::BlockedByFailedLoad, "{fate:?}");
        assert!(world.status.message.contains("no version to return to"));
        assert_eq!(world.switches, ["3"]);
        world.fates.insert("3".into(), Fate::Good);
        world.running = None;
        assert_eq!(world.run(40).shown(), (Some("3"), Transition::UpToDate, Some("3")), "{fate:?}");
    }
}

#[test]
fn newer_target_replaces_the_old_one_at_any_moment() {
    for fate in
        [Fate::Good, Fate::NeverStarts, Fate::Crashes(10), Fate::NeverWell, Fate::Sickens(9)]
    {
        for seconds in (0..90).step_by(3) {
            let mut world = world(&[("3", Fate::Good), ("4", fate), ("5", Fate::Good)], "3");
            world.run(40);
            world.want("4").run(seconds);
            world.want("5").run(45);
            let expected = (Some("5"), Transition::UpToDate, Some("5"));
            assert_eq!(world.shown(), expected, "{fate:?} after {seconds} s");
        }
    }
}

#[test]
fn running_version_is_kept_until_the_target_is_downloaded() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::Good)], "3");
    world.download = coming();
    assert_eq!(world.run(5).shown(), (None, Transition::InProgress, None));
    assert!(world.status.progress.is_some());
    world.download = DownloadState::Ready;
    world.run(10);
    // In the middle of its trial, which goes on.
    world.download = coming();
    assert_eq!(world.want("4").run(60).shown(), (Some("3"), Transition::InProgress, Some("3")));
    world.download = DownloadState::Failed {
        problem: Problem { reason: WorkerReason::ModelDigestMismatch, message: "no".into() },
        time: "t".into(),
    };
    assert_eq!(world.run(60).shown(), (Some("3"), Transition::BlockedByFailedLoad, Some("3")));
    assert_eq!(world.status.last_failure.as_ref().unwrap().reason, "ModelDigestMismatch");
    world.download = DownloadState::Ready;
    world.image = ImageState::Pulling(None);
    assert_eq!(world.run(60).shown(), (Some("3"), Transition::InProgress, Some("3")));
    assert!(world.status.message.contains("image i is being fetched"), "{}", world.status.message);
    let problem = Problem { reason: WorkerReason::ImageMissing, message: "no registry".into() };
    world.image = ImageState::Failed { problem, time: "t".into() };
    assert_eq!(world.run(60).shown(), (Some("3"), Transition::BlockedByFailedLoad, Some("3")));
    assert_eq!(world.status.last_failure.as_ref().unwrap().reason, "ImageMissing");
    assert_eq!(world.switches, ["3"]);
    world.image = ImageState::Ready;
    assert_eq!(world.run(40).shown(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn full_disk_is_reported_as_trouble_and_an_unreachable_server_is_not() {
    let mut world = world(&[("3", Fate::Good)], "3");
    for (reason, expected) in [
        (WorkerReason::DiskFull, Some(WorkerReason::DiskFull)),
        (WorkerReason::ModelUnavailable, None),
    ] {
        let DownloadState::InProgress { progress, .. } = coming() else { unreachable!() };
        let trouble = Some(Problem { reason, message: "7 bytes are missing".into() });
        world.download = DownloadState::InProgress { progress, problem: trouble };
        assert_eq!(world.run(1).shown().1, Transition::InProgress);
        assert_eq!(world.status.trouble, expected);
        assert!(world.status.message.contains("7 bytes are missing"));
    }
}

#[test]
fn held_rollout_downloads_but_does_not_switch() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::Good)], "3");
    world.target.hold = true;
    assert_eq!(
        world.run(40).shown(),
        (Some("3"), Transition::UpToDate, Some("3")),
        "there is nothing to hold on to"
    );
    world.want("4").target.hold = true;
    assert_eq!(world.run(100).shown(), (Some("3"), Transition::InProgress, Some("3")));
    assert!(world.status.message.contains("hold-upgrade"), "{}", world.status.message);
    world.target.hold = false;
    assert_eq!(world.run(40).shown(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn invalid_target_keeps_the_running_version() {
    let mut state = RolloutState::default();
    state.start_trial(&serving("3", "replace"));
    state.pass_trial();
    let mut probes = ProbeHistory::new(Instant::now());
    probes.record(Ok(()), &state.current.as_ref().unwrap().serving.health.clone(), Instant::now());
    let facts = RolloutFacts {
        target: &serving("../4", "replace"),
        refusal: Some("version \"../4\" cannot name a directory"),
        download: DownloadState::Ready,
        image: ImageState::Ready,
        current: InstanceState::Up(&probes),
        last_good: InstanceState::Up(&probes),
        draining: InstanceState::Absent(None),
        failures: 0,
        now: Instant::now(),
        wall: "then",
    };
    let decision = decide(&state, &facts);
    assert_eq!(decision.state, state);
    assert_eq!(decision.report.transition, Transition::InvalidSpec);
    assert_eq!(decision.report.serving_version.as_deref(), Some("3"));
}

#[test]
fn versions_share_a_directory_unless_a_name_is_ambiguous() {
    let mut state = RolloutState::default();
    let directory_generation =
        |state: &RolloutState| state.current.as_ref().unwrap().directory_generation;
    let names = |state: &RolloutState| -> Vec<String> {
        state.watched_versions().iter().map(|version| version.version().to_owned()).collect()
    };
    state.start_trial(&serving("3", "watch"));
    state.pass_trial();
    assert_eq!(names(&state), ["3"]);
    state.start_trial(&serving("4", "watch"));
    assert_eq!(
        (names(&state), directory_generation(&state)),
        (vec!["3".to_owned(), "4".to_owned()], 1)
    );
    // It fails, and what is wanted now has its name and another content.
    state.fail_trial("other", "r".into(), "m".into(), "t");
    assert_eq!(names(&state), ["3"]);
    let mut other = serving("4", "watch");
    other.model.as_mut().unwrap().url.push('2');
    state.start_trial(&other);
    assert_eq!((names(&state), directory_generation(&state)), (vec!["4".to_owned()], 2));
    // Back: the directory that it had.
    state.fail_trial("other", "r".into(), "m".into(), "t");
    assert_eq!((names(&state), directory_generation(&state)), (vec!["3".to_owned()], 1));
    state.start_trial(&serving("5", "watch"));
    assert_eq!(
        directory_generation(&state),
        3,
        "whatever was in a directory once is not known any more"
    );
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        3 => Just(Fate::Good),
        1 => Just(Fate::NeverStarts),
        1 => (1..40u64).prop_map(Fate::Crashes),
        1 => Just(Fate::NeverWell),
        1 => (3..40u64).prop_map(Fate::Sickens),
        1 => Just(Fate::Unsteady),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// Whatever is wanted and whenever: once a version was good, what is served in the end is good,
    /// and if the last target works it is that one.
    #[test]
    fn rollout_settles_on_a_version_that_works(
        fates in prop::collection::vec(fate(), 4),
        wants in prop::collection::vec((0..4usize, 0..50u64), 1..8),
    ) {
        let names = ["1", "2", "3", "4"];
        let all: Vec<_> = names.iter().copied().zip(fates.iter().copied()).chain([("0", Fate::Good)]).collect();
        let mut world = world(&all, "0");
        world.run(40);
        let mut last = 0;
        for (index, seconds) in wants {
            last = index;
            world.want(names[index]).run(seconds);
        }
        world.run(250);
        if fates[last] == Fate::Good {
            prop_assert_eq!(world.shown(), (Some(names[last]), Transition::UpToDate, Some(names[last])));
        } else {
            prop_assert!(world.status.last_good_version.is_some());
            prop_assert_eq!(world.state.current, world.state.last_good);
        }
    }
}

#[test]
fn server_with_two_versions_serves_the_higher_number() {
    let now = Instant::now();
    let mut well = ProbeHistory::new(now);
    well.record(Ok(()), &serving("3", "watch").health, now);
    let shown = |reload, good_version, version| {
        let good = ServedVersion::new(&serving(good_version, reload), 1);
        let target = serving(version, reload);
        let state = RolloutState {
            current: Some(ServedVersion::new(&target, 1)),
            last_good: Some(good),
            directory_generation: 1,
            ..RolloutState::default()
        };
        let facts = RolloutFacts {
            target: &target,
            refusal: None,
            download: DownloadState::Ready,
            image: ImageState::Ready,
            current: InstanceState::Up(&well),
            last_good: InstanceState::Up(&well),
            draining: InstanceState::Absent(None),
            failures: 0,
            now,
            wall: "then",
        };
        decide(&state, &facts).report.serving_version.unwrap()
    };
    assert_eq!(shown("watch", "4", "3"), "4", "3 is on probation beside it");
    assert_eq!(shown("watch", "9", "10"), "10", "numbers, not texts");
    assert_eq!(shown("watch", "b", "a"), "a");
    assert_eq!(shown("replace", "4", "3"), "3");
}

#[test]
fn lower_version_serves_after_the_higher_one_is_unloaded() {
    let now = Instant::now();
    let target = serving("3", "watch");
    let mut well = ProbeHistory::new(now);
    well.record(Ok(()), &target.health, now);
    let later = now + Duration::from_secs(30);
    let version = |version: &str| ServedVersion::new(&serving(version, "watch"), 1);
    let on_trial = |good: &str| RolloutState {
        current: Some(version("3")),
        last_good: Some(version(good)),
        directory_generation: 1,
        ..RolloutState::default()
    };
    let look = |state: &RolloutState, draining| {
        let facts = RolloutFacts {
            target: &target,
            refusal: None,
            download: DownloadState::Ready,
            image: ImageState::Ready,
            current: InstanceState::Up(&well),
            last_good: InstanceState::Up(&well),
            draining,
            failures: 0,
            now: later,
            wall: "then",
        };
        decide(state, &facts)
    };
    let shown = |decision: &RolloutDecision| {
        (decision.report.serving_version.clone().unwrap(), decision.report.transition)
    };
    let passed = look(&on_trial("4"), InstanceState::Absent(None));
    assert_eq!(passed.state.last_good, passed.state.current);
    assert_eq!(passed.state.watched_versions().len(), 1, "4 is taken away");
    let draining = look(&passed.state, InstanceState::Up(&well));
    assert_eq!(shown(&draining), ("4".to_owned(), Transition::InProgress));
    let mut gone = well.clone();
    gone.record(Err("404".to_owned()), &target.health, later);
    for gone in [InstanceState::Up(&gone), InstanceState::Absent(None)] {
        let left = look(&draining.state, gone);
        assert_eq!(shown(&left), ("3".to_owned(), Transition::UpToDate));
        assert_eq!(left.state.draining, None);
    }
    assert_eq!(
        look(&on_trial("2"), InstanceState::Absent(None)).state.draining,
        None,
        "3 answers already"
    );
}

#[test]
fn server_follows_only_a_change_of_version() {
    let three = serving("3", "watch");
    let four = serving("4", "watch");
    assert!(can_follow(&three, &four));
    assert!(!can_follow(&three, &three), "a version's directory is never changed");
    let changed = |change: fn(&mut ModelServer)| {
        let mut four = four.clone();
        change(&mut four);
        can_follow(&three, &four)
    };
    assert!(changed(|s| s.health.period_ms = 5) && changed(|s| s.hold = true));
    assert!(
        !changed(|s| s.image.push('2')) && !changed(|s| s.port = 5) && !changed(|s| s.model = None)
    );
    assert!(!changed(|s| s.reload = ServerUpdateMode::Replace));
    assert!(!changed(|s| s.args.push("{version}".into())));
    assert!(!changed(|s| s.model.as_mut().unwrap().directory.push('2')));
}

/// The database of an earlier release has these names. They must not change.
#[test]
fn stored_rollout_state_has_stable_field_names() {
    let version = |name: &str| {
        let serving = serving(name, "watch");
        json!({"id": ContentHash::of(&serving), "lineage": 2, "serving": serving})
    };
    let stored = json!({
        "current": version("4"), "good": version("3"), "blocked": "some-id",
        "last_failure": {"version": "5", "reason": "HealthCheckFailed", "message": "m", "time": "t"},
        "leaving": version("5"), "lineage": 2, "used": {"4": "id-4"},
    });
    let state: RolloutState = serde_json::from_value(stored.clone()).unwrap();
    let versions = [&state.current, &state.last_good, &state.draining];
    let names = versions.map(|it| it.as_ref().unwrap().version());
    assert_eq!((names, state.directory_generation), (["4", "3", "5"], 2));
    assert_eq!(serde_json::to_value(&state).unwrap(), stored);
}
