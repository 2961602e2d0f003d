//! The rollout of a model server in a simulation with steps of half a second: each version behaves
//! as given, and the decisions are checked.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)]
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_agent_core::{
    domain::{
        artifact::{DownloadState, ImageState},
        problem::Problem,
        rollout::RolloutState,
        served_version::{ServedVersion, id},
        server_part::{ProbeFailure, ServerPart, Slot},
    },
    model_server::{
        probe::ProbeHistory,
        rollout::{InstanceState, RolloutDecision, RolloutFacts, can_follow, decide},
    },
};
use neptune_wire::{
    ContentHash, DownloadProgress, ModelServer, ModelServerReport, ServerUpdateMode,
    TransformerProxy, Transition, WorkerReason,
};
use proptest::prelude::*;
use serde_json::json;

#[path = "rollout/values.rs"]
mod values;

const STEP: Duration = Duration::from_millis(500);

/// The behaviour of a version once it runs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behavior {
    Healthy,
    /// Docker rejects its container.
    NeverStarts,
    /// It is healthy, and its container exits after this many seconds.
    Crashes(u64),
    /// It runs, and every probe fails.
    NeverHealthy,
    /// Probes succeed from 2 s on, and fail after this many seconds.
    BecomesUnhealthy(u64),
    /// Every third probe fails.
    Flapping,
    /// Probes succeed from this many seconds on.
    StartsSlowly(u64),
}

struct Simulation {
    behaviors: BTreeMap<String, Behavior>,
    state: RolloutState,
    target: ModelServer,
    download: DownloadState,
    image: ImageState,
    /// Why the values of the target cannot be read.
    values: Option<Problem>,
    now: Instant,
    /// The ID of the version that runs, since when, and whether its container exited.
    running: Option<(String, Instant, bool)>,
    probes: ProbeHistory,
    status: ModelServerReport,
    restarts: u32,
    switches: Vec<String>,
    probe_count: u32,
}

fn simulation(behaviors: &[(&str, Behavior)], target: &str) -> Simulation {
    let start = Instant::now();
    Simulation {
        behaviors: behaviors
            .iter()
            .map(|(version, behavior)| ((*version).to_owned(), *behavior))
            .collect(),
        state: RolloutState::default(),
        target: serving(target, "replace"),
        download: DownloadState::Ready,
        image: ImageState::Ready,
        values: None,
        now: start,
        running: None,
        probes: ProbeHistory::new(start),
        status: ModelServerReport::default(),
        restarts: 0,
        switches: Vec::new(),
        probe_count: 0,
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

/// The server with this version of its Secret, sealed to this key.
fn with_secret(mut server: ModelServer, version: u32, key: &str) -> ModelServer {
    let secret = json!([{"name": "s", "version": format!("u/{version}"), "keys": ["k"],
        "sealKey": key, "sealed": format!("{key}-{version}")}]);
    server.program.secrets = serde_json::from_value(secret).unwrap();
    let config = json!([{"name": "c", "version": "u/1", "data": {"a": version.to_string()}}]);
    server.program.configs = serde_json::from_value(config).unwrap();
    server
}

fn unreadable() -> Problem {
    let message = "Secret s cannot be opened".to_owned();
    Problem { reason: WorkerReason::SecretUnreadable, message }
}

fn failure(message: &str) -> ProbeFailure {
    ProbeFailure { part: ServerPart::Server, message: message.to_owned() }
}

/// Returns the server of [`serving`] with a transformer of this image.
fn transformed(version: &str, reload: &str, image: &str) -> ModelServer {
    let transformer = json!({"image": image, "serverPort": 13_501, "healthPath": "/ready"});
    let transformer = Some(serde_json::from_value(transformer).unwrap());
    ModelServer { transformer, ..serving(version, reload) }
}

fn downloading() -> DownloadState {
    let progress =
        DownloadProgress { received_bytes: 1, total_bytes: Some(2), bytes_per_second: 1 };
    DownloadState::Downloading { progress, problem: None }
}

impl Simulation {
    fn behavior(&self) -> Option<Behavior> {
        self.state.current.as_ref().map(|current| self.behaviors[current.version()])
    }

    /// Executes the last decision, and advances the time by half a second.
    fn step(&mut self) {
        let current = self.state.current.as_ref().map(|current| current.id().to_owned());
        if self.running.as_ref().map(|(id, ..)| id) != current.as_ref() {
            self.running = current.map(|id| (id, self.now, false));
            self.probes = ProbeHistory::new(self.now);
        }
        self.now += STEP;
        let behavior = self.behavior();
        let Some((_, since, has_ended)) = &mut self.running else { return self.decide(None) };
        let age = self.now.duration_since(*since).as_secs();
        match behavior.unwrap() {
            Behavior::NeverStarts => return self.decide(Some("ContainerRefused")),
            Behavior::Crashes(after) if *has_ended || age >= after => {
                *has_ended = !*has_ended;
                if *has_ended {
                    return self.decide(Some("CrashLoopBackOff"));
                }
                *since = self.now;
                self.probes = ProbeHistory::new(self.now);
            }
            _ => {}
        }
        self.probe_count += 1;
        let is_healthy = match behavior.unwrap() {
            Behavior::Healthy | Behavior::Crashes(_) => true,
            Behavior::NeverStarts | Behavior::NeverHealthy => false,
            Behavior::BecomesUnhealthy(after) => age >= 2 && age < after,
            Behavior::Flapping => !self.probe_count.is_multiple_of(3),
            Behavior::StartsSlowly(after) => age >= after,
        };
        let answer = if is_healthy { Ok(()) } else { Err(failure("the answer is 404")) };
        let health = self.state.current.as_ref().unwrap().serving.health.clone();
        self.probes.record(answer, &health, self.now);
        self.decide(None);
    }

    fn decide(&mut self, down: Option<&str>) {
        for round in 0.. {
            assert!(round < 4, "the decision becomes stable");
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
                awaited_image: "i",
                image: self.image.clone(),
                values: self.values.as_ref(),
                current,
                last_good: good,
                draining: InstanceState::Absent(None),
                failures: 0,
                now: self.now,
                wall: "then",
            };
            let decision = decide(&self.state, &facts);
            if decision.restart.is_some() {
                self.restarts += 1;
                self.running = None;
            }
            let before = std::mem::replace(&mut self.state, decision.state);
            self.status = decision.report;
            self.check_kept_versions(&before);
            if self.state == before {
                break;
            }
            // The state can be stored and restored.
            let text = serde_json::to_string(&self.state).unwrap();
            assert_eq!(serde_json::from_str::<RolloutState>(&text).unwrap(), self.state);
            if self.state.current != before.current {
                self.switches.push(self.state.current.as_ref().unwrap().version().to_owned());
            }
        }
    }

    /// Checks that the current and the last good version are kept.
    fn check_kept_versions(&self, before: &RolloutState) {
        let kept: Vec<&str> = self.state.kept_versions().map(ServedVersion::id).collect();
        assert!(before.last_good.is_none() || self.state.last_good.is_some());
        for version in self.state.current.iter().chain(&self.state.last_good) {
            assert!(kept.contains(&version.id()));
        }
        if self.state.last_good != before.last_good {
            let id = |version: &Option<ServedVersion>| {
                version.as_ref().map(|version| version.id().to_owned())
            };
            let (good, tried) = (id(&self.state.last_good), id(&before.current));
            assert!(good == tried || good == id(&before.last_good), "only one on trial is good");
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

    /// Gives the target this version of its Secret, sealed to this key.
    fn with_secret(&mut self, version: u32, key: &str) -> &mut Self {
        self.target = with_secret(self.target.clone(), version, key);
        self
    }

    fn summary(&self) -> (Option<&str>, Transition, Option<&str>) {
        let status = &self.status;
        (status.serving_version.as_deref(), status.transition, status.last_good_version.as_deref())
    }
}

#[test]
fn healthy_version_becomes_last_good_after_probation() {
    let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", Behavior::Healthy)], "4");
    assert_eq!(simulation.run(5).summary(), (Some("4"), Transition::InProgress, None));
    assert_eq!(simulation.run(30).summary(), (Some("4"), Transition::UpToDate, Some("4")));
    assert_eq!(
        simulation.want("3").run(5).summary(),
        (Some("3"), Transition::InProgress, Some("4"))
    );
    assert_eq!(simulation.run(30).summary(), (Some("3"), Transition::UpToDate, Some("3")));
    assert_eq!(simulation.switches, ["4", "3"]);
    assert_eq!(simulation.status.message, "");
}

#[test]
fn failed_version_is_rolled_back_to_last_good() {
    for (behavior, reason) in [
        (Behavior::NeverStarts, "ContainerRefused"),
        (Behavior::Crashes(1), "CrashLoopBackOff"),
        (Behavior::Crashes(29), "CrashLoopBackOff"),
        (Behavior::NeverHealthy, "HealthCheckFailed"),
        (Behavior::BecomesUnhealthy(20), "HealthCheckFailed"),
        (Behavior::Flapping, "HealthCheckFailed"),
    ] {
        let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", behavior)], "3");
        simulation.run(40);
        simulation.want("4").run(200);
        let expected = (Some("3"), Transition::BlockedByFailedLoad, Some("3"));
        assert_eq!(simulation.summary(), expected, "{behavior:?}: {:?}", simulation.status);
        assert_eq!(simulation.switches, ["3", "4", "3"], "{behavior:?}: tried once");
        let failure = simulation.status.last_failure.as_ref().unwrap();
        assert_eq!((failure.version.as_str(), failure.reason.as_str()), ("4", reason));
        assert!(
            simulation.status.message.contains("returned to 3"),
            "{}",
            simulation.status.message
        );

        // Blocked until the target changes; then it may be tried again.
        assert_eq!(simulation.want("3").run(2).summary().1, Transition::UpToDate);
        simulation.behaviors.insert("4".into(), Behavior::Healthy);
        assert_eq!(simulation.want("4").run(40).summary().1, Transition::UpToDate, "{behavior:?}");
    }
}

#[test]
fn changed_digest_of_blocked_version_is_tried_again() {
    let mut simulation =
        simulation(&[("3", Behavior::Healthy), ("4", Behavior::NeverHealthy)], "3");
    simulation.run(40);
    simulation.want("4").run(100);
    simulation.behaviors.insert("4".into(), Behavior::Healthy);
    assert_eq!(
        simulation.run(100).summary().1,
        Transition::BlockedByFailedLoad,
        "it stays blocked"
    );
    simulation.target.model.as_mut().unwrap().sha256 = Some("00".repeat(32));
    assert_eq!(simulation.run(40).summary(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn rollback_to_broken_version_is_reported() {
    let mut simulation =
        simulation(&[("3", Behavior::Healthy), ("4", Behavior::NeverHealthy)], "3");
    simulation.run(40);
    simulation.behaviors.insert("3".into(), Behavior::NeverHealthy);
    simulation.want("4").run(200);
    assert_eq!(simulation.summary(), (None, Transition::BlockedByFailedLoad, Some("3")));
    let message = &simulation.status.message;
    assert!(
        message.contains("4 failed") && message.contains("returned to 3, which does not answer"),
        "{message}"
    );
    assert_eq!(simulation.switches, ["3", "4", "3"], "no further switches");
    assert!(simulation.restarts > 0, "a hanging container is restarted");
    simulation.behaviors.insert("3".into(), Behavior::Healthy);
    assert_eq!(
        simulation.run(10).summary(),
        (Some("3"), Transition::BlockedByFailedLoad, Some("3"))
    );
}

#[test]
fn failing_first_version_is_retried() {
    for behavior in [
        Behavior::NeverStarts,
        Behavior::Crashes(3),
        Behavior::NeverHealthy,
        Behavior::BecomesUnhealthy(10),
    ] {
        let mut simulation = simulation(&[("3", behavior)], "3");
        simulation.run(200);
        assert_eq!(simulation.summary().1, Transition::BlockedByFailedLoad, "{behavior:?}");
        assert!(simulation.status.message.contains("no version to return to"));
        assert_eq!(simulation.switches, ["3"]);
        simulation.behaviors.insert("3".into(), Behavior::Healthy);
        simulation.running = None;
        assert_eq!(
            simulation.run(40).summary(),
            (Some("3"), Transition::UpToDate, Some("3")),
            "{behavior:?}"
        );
    }
}

#[test]
fn first_version_that_starts_slowly_is_reported_and_served_later() {
    let mut slow = simulation(&[("3", Behavior::StartsSlowly(150))], "3");
    slow.run(100);
    assert_eq!(slow.summary().1, Transition::BlockedByFailedLoad);
    let message = &slow.status.message;
    assert!(message.contains("was not healthy within 60 s"), "{message}");
    assert_eq!(slow.run(100).summary(), (Some("3"), Transition::UpToDate, Some("3")));
    assert_eq!((slow.restarts, &*slow.status.message), (0, ""));

    let mut hanging = simulation(&[("3", Behavior::NeverHealthy)], "3");
    assert_eq!(hanging.run(170).restarts, 0);
    assert_eq!(hanging.run(15).restarts, 1, "after three times startWithinSeconds");
}

#[test]
fn newer_target_replaces_older_one_at_any_time() {
    for behavior in [
        Behavior::Healthy,
        Behavior::NeverStarts,
        Behavior::Crashes(10),
        Behavior::NeverHealthy,
        Behavior::BecomesUnhealthy(9),
    ] {
        for seconds in (0..90).step_by(3) {
            let mut simulation = simulation(
                &[("3", Behavior::Healthy), ("4", behavior), ("5", Behavior::Healthy)],
                "3",
            );
            simulation.run(40);
            simulation.want("4").run(seconds);
            simulation.want("5").run(45);
            let expected = (Some("5"), Transition::UpToDate, Some("5"));
            assert_eq!(simulation.summary(), expected, "{behavior:?} after {seconds} s");
        }
    }
}

#[test]
fn current_version_keeps_running_until_target_is_on_the_node() {
    let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", Behavior::Healthy)], "3");
    simulation.download = downloading();
    assert_eq!(simulation.run(5).summary(), (None, Transition::InProgress, None));
    assert!(simulation.status.progress.is_some());
    simulation.download = DownloadState::Ready;
    simulation.run(10);
    // During its trial, which continues.
    simulation.download = downloading();
    assert_eq!(
        simulation.want("4").run(60).summary(),
        (Some("3"), Transition::InProgress, Some("3"))
    );
    simulation.download = DownloadState::Stuck {
        problem: Problem { reason: WorkerReason::ModelDigestMismatch, message: "no".into() },
        time: "t".into(),
    };
    assert_eq!(
        simulation.run(60).summary(),
        (Some("3"), Transition::BlockedByFailedLoad, Some("3"))
    );
    assert_eq!(simulation.status.last_failure.as_ref().unwrap().reason, "ModelDigestMismatch");
    simulation.download = DownloadState::Ready;
    simulation.image = ImageState::Pulling(None);
    assert_eq!(simulation.run(60).summary(), (Some("3"), Transition::InProgress, Some("3")));
    assert!(simulation.status.message.contains("pulling image i"), "{}", simulation.status.message);
    let problem = Problem { reason: WorkerReason::ImageMissing, message: "no registry".into() };
    simulation.image = ImageState::Stuck { problem, time: "t".into() };
    assert_eq!(
        simulation.run(60).summary(),
        (Some("3"), Transition::BlockedByFailedLoad, Some("3"))
    );
    assert_eq!(simulation.status.last_failure.as_ref().unwrap().reason, "ImageMissing");
    assert_eq!(simulation.switches, ["3"]);
    simulation.image = ImageState::Ready;
    assert_eq!(simulation.run(40).summary(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn only_a_full_disk_and_a_window_are_reported_as_trouble() {
    let mut simulation = simulation(&[("3", Behavior::Healthy)], "3");
    for (reason, expected) in [
        (WorkerReason::DiskFull, Some(WorkerReason::DiskFull)),
        (WorkerReason::DownloadWindow, Some(WorkerReason::DownloadWindow)),
        (WorkerReason::ModelUnavailable, None),
    ] {
        let DownloadState::Downloading { progress, .. } = downloading() else { unreachable!() };
        let trouble = Some(Problem { reason, message: "7 bytes are missing".into() });
        simulation.download = DownloadState::Downloading { progress, problem: trouble };
        assert_eq!(simulation.run(1).summary().1, Transition::InProgress);
        assert_eq!(simulation.status.trouble, expected);
        assert!(simulation.status.message.contains("7 bytes are missing"));
    }
}

#[test]
fn held_switch_is_prepared_and_not_made() {
    let mut simulation = simulation(&[("3", Behavior::Healthy), ("4", Behavior::Healthy)], "3");
    simulation.target.hold = true;
    assert_eq!(
        simulation.run(40).summary(),
        (Some("3"), Transition::UpToDate, Some("3")),
        "without a running version nothing is held"
    );
    simulation.want("4").target.hold = true;
    assert_eq!(simulation.run(100).summary(), (Some("3"), Transition::InProgress, Some("3")));
    assert!(simulation.status.message.contains("hold-upgrade"), "{}", simulation.status.message);
    simulation.target.hold = false;
    assert_eq!(simulation.run(40).summary(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn invalid_target_leaves_current_version() {
    let mut state = RolloutState::default();
    state.start_trial(&serving("3", "replace"));
    state.pass_trial();
    let mut probes = ProbeHistory::new(Instant::now());
    probes.record(Ok(()), &state.current.as_ref().unwrap().serving.health.clone(), Instant::now());
    let facts = RolloutFacts {
        target: &serving("../4", "replace"),
        refusal: Some("version \"../4\" is not a valid directory name"),
        download: DownloadState::Ready,
        awaited_image: "i",
        image: ImageState::Ready,
        values: None,
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
fn versions_share_directory_unless_name_has_other_content() {
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
    // It fails, and the next target has its name and another content.
    state.fail_trial("other", "r".into(), "m".into(), "t");
    assert_eq!(names(&state), ["3"]);
    let mut other = serving("4", "watch");
    other.model.as_mut().unwrap().url.push('2');
    state.start_trial(&other);
    assert_eq!((names(&state), directory_generation(&state)), (vec!["4".to_owned()], 2));
    // After the rollback: the previous directory.
    state.fail_trial("other", "r".into(), "m".into(), "t");
    assert_eq!((names(&state), directory_generation(&state)), (vec!["3".to_owned()], 1));
    state.start_trial(&serving("5", "watch"));
    assert_eq!(
        directory_generation(&state),
        3,
        "the names used in earlier directories are not kept"
    );
}

fn behavior() -> impl Strategy<Value = Behavior> {
    prop_oneof![
        3 => Just(Behavior::Healthy),
        1 => Just(Behavior::NeverStarts),
        1 => (1..40u64).prop_map(Behavior::Crashes),
        1 => Just(Behavior::NeverHealthy),
        1 => (3..40u64).prop_map(Behavior::BecomesUnhealthy),
        1 => Just(Behavior::Flapping),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    /// For any sequence of targets and values: after the first good version, a good version is served in the
    /// end, and the last target if that is healthy.
    #[test]
    fn rollout_converges_to_a_healthy_version(
        behaviors in prop::collection::vec(behavior(), 4),
        targets in prop::collection::vec(
            (0..4usize, 0..50u64, 0..3u32, prop_oneof!["a", "b"], prop::bool::weighted(0.8)),
            1..8,
        ),
    ) {
        let names = ["1", "2", "3", "4"];
        let all: Vec<_> = names.iter().copied().zip(behaviors.iter().copied()).chain([("0", Behavior::Healthy)]).collect();
        let mut simulation = simulation(&all, "0");
        simulation.run(40);
        let mut last = 0;
        for (index, seconds, secret, key, is_readable) in targets {
            last = index;
            simulation.values = (!is_readable).then(unreadable);
            simulation.want(names[index]).with_secret(secret, &key).run(seconds);
        }
        simulation.values = None;
        simulation.run(250);
        let target = id(&simulation.target);
        for version in simulation.state.kept_versions().filter(|it| it.id() == target) {
            prop_assert_eq!(&version.serving.program, &simulation.target.program);
        }
        if behaviors[last] == Behavior::Healthy {
            prop_assert_eq!(simulation.summary(), (Some(names[last]), Transition::UpToDate, Some(names[last])));
        } else {
            prop_assert!(simulation.status.last_good_version.is_some());
            prop_assert_eq!(simulation.state.current, simulation.state.last_good);
        }
    }
}

#[test]
fn server_with_two_versions_serves_higher_number() {
    let now = Instant::now();
    let mut healthy = ProbeHistory::new(now);
    healthy.record(Ok(()), &serving("3", "watch").health, now);
    let serving_version = |reload, good_version, version| {
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
            awaited_image: "i",
            image: ImageState::Ready,
            values: None,
            current: InstanceState::Up(&healthy),
            last_good: InstanceState::Up(&healthy),
            draining: InstanceState::Absent(None),
            failures: 0,
            now,
            wall: "then",
        };
        decide(&state, &facts).report.serving_version.unwrap()
    };
    assert_eq!(serving_version("watch", "4", "3"), "4", "3 is on probation beside it");
    assert_eq!(serving_version("watch", "9", "10"), "10", "compared as numbers");
    assert_eq!(serving_version("watch", "b", "a"), "a");
    assert_eq!(serving_version("replace", "4", "3"), "3");
}

#[test]
fn lower_version_is_served_after_higher_one_is_unloaded() {
    let now = Instant::now();
    let target = serving("3", "watch");
    let mut healthy = ProbeHistory::new(now);
    healthy.record(Ok(()), &target.health, now);
    let later = now + Duration::from_secs(30);
    let version = |version: &str| ServedVersion::new(&serving(version, "watch"), 1);
    let on_trial = |good: &str| RolloutState {
        current: Some(version("3")),
        last_good: Some(version(good)),
        directory_generation: 1,
        ..RolloutState::default()
    };
    let decide_with = |state: &RolloutState, draining| {
        let facts = RolloutFacts {
            target: &target,
            refusal: None,
            download: DownloadState::Ready,
            awaited_image: "i",
            image: ImageState::Ready,
            values: None,
            current: InstanceState::Up(&healthy),
            last_good: InstanceState::Up(&healthy),
            draining,
            failures: 0,
            now: later,
            wall: "then",
        };
        decide(state, &facts)
    };
    let summary = |decision: &RolloutDecision| {
        (decision.report.serving_version.clone().unwrap(), decision.report.transition)
    };
    let passed = decide_with(&on_trial("4"), InstanceState::Absent(None));
    assert_eq!(passed.state.last_good, passed.state.current);
    assert_eq!(passed.state.watched_versions().len(), 1, "4 is removed from the directory");
    let draining = decide_with(&passed.state, InstanceState::Up(&healthy));
    assert_eq!(summary(&draining), ("4".to_owned(), Transition::InProgress));
    let mut gone = healthy.clone();
    gone.record(Err(failure("404")), &target.health, later);
    for gone in [InstanceState::Up(&gone), InstanceState::Absent(None)] {
        let left = decide_with(&draining.state, gone);
        assert_eq!(summary(&left), ("3".to_owned(), Transition::UpToDate));
        assert_eq!(left.state.draining, None);
    }
    assert_eq!(
        decide_with(&on_trial("2"), InstanceState::Absent(None)).state.draining,
        None,
        "3 answers already"
    );
}

#[test]
fn server_reloads_another_version_but_no_other_change() {
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
    assert!(changed(|s| *s = with_secret(s.clone(), 2, "b")), "values are no part of the version");
    assert!(
        !changed(|s| s.program.image.push('2'))
            && !changed(|s| s.port = 5)
            && !changed(|s| s.model = None)
    );
    assert!(!changed(|s| s.reload = ServerUpdateMode::Replace));
    assert!(!changed(|s| s.program.args.push("{version}".into())));
    assert!(!changed(|s| s.model.as_mut().unwrap().directory.push('2')));
}

#[test]
fn another_transformer_keeps_the_server_and_its_directory() {
    let [one, two] = ["t1", "t2"].map(|image| transformed("4", "watch", image));
    assert!(can_follow(&one, &two) && can_follow(&one, &transformed("5", "watch", "t2")));
    assert!(!can_follow(&one, &one), "nothing to follow");
    assert!(!can_follow(&serving("4", "watch"), &one), "the server gets another port");
    let mut other = two.clone();
    other.model.as_mut().unwrap().url.push('2');
    assert!(!can_follow(&one, &other), "a version's directory is never changed");

    let mut state = RolloutState::default();
    state.start_trial(&one);
    state.pass_trial();
    state.start_trial(&two);
    let generations = |state: &RolloutState| {
        let versions = [&state.current, &state.last_good];
        versions.map(|version| version.as_ref().unwrap().directory_generation)
    };
    assert_eq!((generations(&state), state.watched_versions().len()), ([1, 1], 1));
    state.fail_trial("other", "r".into(), "m".into(), "t");
    assert_eq!(state.current, state.last_good);
    state.start_trial(&transformed("5", "watch", "t1"));
    assert_eq!((generations(&state), state.watched_versions().len()), ([1, 1], 2));
}

const TRANSFORMER: ServerPart = ServerPart::Transformer(Slot::First);

#[test]
fn changed_transformer_behind_a_proxy_takes_the_other_slot() {
    let server_with = |image: &str, version: &str, ports: Option<[u16; 2]>| {
        let mut serving = transformed(version, "watch", image);
        let proxy = ports.map(|ports| TransformerProxy { image: "p".into(), ports });
        serving.transformer.as_mut().unwrap().proxy = proxy;
        serving
    };
    let (ports, others) = (Some([13_502, 13_503]), Some([13_504, 13_505]));
    let slot = |state: &RolloutState| state.current.as_ref().unwrap().slot;
    let mut state = RolloutState::default();
    state.start_trial(&server_with("t1", "4", ports));
    assert_eq!(slot(&state), Slot::First);
    state.pass_trial();
    // Each trial takes the slot that the last good one does not have.
    for image in ["t2", "t3"] {
        state.start_trial(&server_with(image, "4", ports));
        assert_eq!(slot(&state), Slot::Second);
    }
    state.pass_trial();
    state.start_trial(&server_with("t4", "4", ports));
    assert_eq!(slot(&state), Slot::First);
    let stored = serde_json::to_value(&state).unwrap();
    assert_eq!(serde_json::from_value::<RolloutState>(stored).unwrap(), state);
    state.fail_trial("other", "r".into(), "m".into(), "t");
    assert_eq!(slot(&state), Slot::Second);
    // Another version keeps the container of the transformer, another proxy replaces all.
    state.start_trial(&server_with("t3", "5", ports));
    assert_eq!(slot(&state), Slot::Second);
    state.start_trial(&server_with("t5", "5", others));
    assert_eq!(slot(&state), Slot::First);
    state.pass_trial();
    for ports in [ports, None] {
        state.start_trial(&server_with("t6", "5", ports));
        assert_eq!(slot(&state), Slot::First);
    }
}

#[test]
fn server_that_does_not_find_its_model_in_an_archive_has_a_hint() {
    let now = Instant::now();
    let message = |url: &str, part| {
        let mut target = serving("4", "watch");
        url.clone_into(&mut target.model.as_mut().unwrap().url);
        let mut state = RolloutState::default();
        state.start_trial(&target);
        let mut probes = ProbeHistory::new(now);
        let failed = ProbeFailure { part, message: "GET /v/4: HTTP status 404".into() };
        probes.record(Err(failed), &target.health, now);
        let facts = RolloutFacts {
            target: &target,
            refusal: None,
            download: DownloadState::Ready,
            awaited_image: "i",
            image: ImageState::Ready,
            values: None,
            current: InstanceState::Up(&probes),
            last_good: InstanceState::Absent(None),
            draining: InstanceState::Absent(None),
            failures: 0,
            now: now + Duration::from_secs(60),
            wall: "then",
        };
        decide(&state, &facts).state.last_failure.unwrap().message
    };
    let plain = "was not healthy within 60 s: GET /v/4: HTTP status 404";
    let hint = "; the model's files must be at the top of the archive, not in a directory";
    let archive = message("http://h/4.tar.gz", ServerPart::Server);
    assert!(archive.starts_with(&format!("{plain}{hint}")), "{archive}");
    let slow = format!("{plain}; raise health.startWithinSeconds if it needs longer");
    assert_eq!(message("http://h/4.onnx", ServerPart::Server), slow);
    assert_eq!(message("http://h/4.tar.gz", TRANSFORMER), slow);
}

#[test]
fn failed_transformer_is_rolled_back_with_its_reason() {
    let now = Instant::now();
    let (one, two) = (transformed("4", "replace", "t1"), transformed("4", "replace", "t2"));
    let mut state = RolloutState::default();
    state.start_trial(&one);
    state.pass_trial();
    state.start_trial(&two);
    let mut probes = ProbeHistory::new(now);
    let failed = ProbeFailure { part: TRANSFORMER, message: "GET /ready: 501".into() };
    probes.record(Err(failed), &two.health, now);
    let decide_at = |state: &RolloutState, current, now| {
        let facts = RolloutFacts {
            target: &two,
            refusal: None,
            download: DownloadState::Ready,
            awaited_image: "t2",
            image: ImageState::Ready,
            values: None,
            current,
            last_good: current,
            draining: InstanceState::Absent(None),
            failures: 0,
            now,
            wall: "then",
        };
        decide(state, &facts)
    };
    let failed = decide_at(&state, InstanceState::Up(&probes), now + Duration::from_secs(60));
    assert_eq!(failed.state.current, failed.state.last_good);
    let failure = failed.state.last_failure.as_ref().unwrap();
    assert_eq!((failure.reason.as_str(), failure.version.as_str()), ("TransformerFailed", "4"));
    assert!(failure.message.contains("was not healthy within 60 s: GET /ready: 501"));
    let mut healthy = ProbeHistory::new(now);
    healthy.record(Ok(()), &one.health, now);
    let report = decide_at(&failed.state, InstanceState::Up(&healthy), now).report;
    assert_eq!(report.transition, Transition::BlockedByFailedLoad);
    assert_eq!(report.serving_version.as_deref(), Some("4"));
    let message = &report.message;
    assert!(
        message.ends_with("returned to the previous transformer; correct spec.transformer"),
        "{message}"
    );

    // A transformer that hangs is replaced alone.
    let mut hanging = healthy.clone();
    for _ in 0..3 {
        let failed = ProbeFailure { part: TRANSFORMER, message: "no".into() };
        hanging.record(Err(failed), &one.health, now);
    }
    let later = now + Duration::from_secs(61);
    let decision = decide_at(&failed.state, InstanceState::Up(&hanging), later);
    assert_eq!(decision.restart, Some(TRANSFORMER));
}

/// The database of an earlier release has these names. They must not change.
#[test]
fn stored_rollout_state_has_stable_field_names() {
    let version = |name: &str| {
        let serving = serving(name, "watch");
        json!({"id": ContentHash::compute(&serving), "lineage": 2, "serving": serving})
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
