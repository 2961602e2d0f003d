//! A model server in a made-up world, half a second a step: what each version does is given, what the
//! decisions come to is looked at.

#![allow(clippy::unwrap_used)]
use neptune_wire::{Transition, WorkerReason};
use proptest::prelude::*;

use super::*;
use crate::edition::tests::serving;

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
    memory: Memory,
    target: ModelServer,
    supply: Supply,
    image: ImageSupply,
    now: Instant,
    /// The edition that runs, since when, and whether it has ended.
    running: Option<(String, Instant, bool)>,
    checks: Checks,
    status: ModelServerReport,
    restarts: u32,
    switches: Vec<String>,
    asked: u32,
}

fn world(fates: &[(&str, Fate)], target: &str) -> World {
    let start = Instant::now();
    World {
        fates: fates.iter().map(|(version, fate)| ((*version).to_owned(), *fate)).collect(),
        memory: Memory::default(),
        target: serving(target, "replace"),
        supply: Supply::Ready,
        image: ImageSupply::Ready,
        now: start,
        running: None,
        checks: Checks::new(start),
        status: ModelServerReport::default(),
        restarts: 0,
        switches: Vec::new(),
        asked: 0,
    }
}

fn coming() -> Supply {
    let progress =
        DownloadProgress { received_bytes: 1, total_bytes: Some(2), bytes_per_second: 1 };
    Supply::Coming { progress, trouble: None }
}

impl World {
    fn fate(&self) -> Option<Fate> {
        self.memory.current.as_ref().map(|current| self.fates[current.version()])
    }

    /// Lets the node do what was decided, and half a second pass.
    fn step(&mut self) {
        let current = self.memory.current.as_ref().map(|current| current.id().to_owned());
        if self.running.as_ref().map(|(id, ..)| id) != current.as_ref() {
            self.running = current.map(|id| (id, self.now, false));
            self.checks = Checks::new(self.now);
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
                self.checks = Checks::new(self.now);
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
        let health = self.memory.current.as_ref().unwrap().serving.health.clone();
        self.checks.answered(answer, &health, self.now);
        self.decide(None);
    }

    fn decide(&mut self, down: Option<&str>) {
        for round in 0.. {
            assert!(round < 4, "it settles");
            let is_current = round == 0 && self.running.is_some();
            let current = match down {
                Some(reason) if is_current => Run::Down { reason, message: "why" },
                None if is_current => Run::Up(&self.checks),
                _ => Run::Absent(None),
            };
            let good =
                if self.memory.good == self.memory.current { current } else { Run::Absent(None) };
            let facts = Facts {
                target: &self.target,
                refusal: None,
                supply: self.supply.clone(),
                image: self.image.clone(),
                current,
                good,
                leaving: Run::Absent(None),
                failures: 0,
                now: self.now,
                wall: "then",
            };
            let decision = decide(&self.memory, &facts);
            if decision.restart {
                self.restarts += 1;
                self.running = None;
            }
            let before = std::mem::replace(&mut self.memory, decision.memory);
            self.status = decision.status;
            self.keeps_what_it_returns_to(&before);
            if self.memory == before {
                break;
            }
            // What is stored is read back as it was.
            let text = serde_json::to_string(&self.memory).unwrap();
            assert_eq!(serde_json::from_str::<Memory>(&text).unwrap(), self.memory);
            if self.memory.current != before.current {
                self.switches.push(self.memory.current.as_ref().unwrap().version().to_owned());
            }
        }
    }

    /// The last good version and the running one are never let go, but for a better one.
    fn keeps_what_it_returns_to(&self, before: &Memory) {
        let kept: Vec<&str> = self.memory.editions().map(Edition::id).collect();
        assert!(before.good.is_none() || self.memory.good.is_some());
        for edition in self.memory.current.iter().chain(&self.memory.good) {
            assert!(kept.contains(&edition.id()));
        }
        if self.memory.good != before.good {
            assert_eq!(self.memory.good, before.current, "only what was tried becomes good");
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
fn a_version_that_works_is_on_trial_and_then_the_last_good_one() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::Good)], "4");
    assert_eq!(world.run(5).shown(), (Some("4"), Transition::InProgress, None));
    assert_eq!(world.run(30).shown(), (Some("4"), Transition::UpToDate, Some("4")));
    assert_eq!(world.want("3").run(5).shown(), (Some("3"), Transition::InProgress, Some("4")));
    assert_eq!(world.run(30).shown(), (Some("3"), Transition::UpToDate, Some("3")));
    assert_eq!(world.switches, ["4", "3"]);
    assert_eq!(world.status.message, "");
}

#[test]
fn whatever_a_new_version_does_wrong_the_last_good_one_is_returned_to() {
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
fn what_changes_of_the_target_beside_its_version_is_tried_too() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::NeverWell)], "3");
    world.run(40);
    world.want("4").run(100);
    world.fates.insert("4".into(), Fate::Good);
    assert_eq!(world.run(100).shown().1, Transition::BlockedByFailedLoad, "it stays");
    world.target.model.as_mut().unwrap().sha256 = Some("00".repeat(32));
    assert_eq!(world.run(40).shown(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn returning_to_a_broken_version_is_a_state_that_says_so() {
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
fn a_first_version_that_fails_is_tried_again_and_again() {
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
fn a_newer_target_takes_the_place_of_the_old_one_at_any_moment() {
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
fn what_runs_goes_on_until_the_target_is_here() {
    let mut world = world(&[("3", Fate::Good), ("4", Fate::Good)], "3");
    world.supply = coming();
    assert_eq!(world.run(5).shown(), (None, Transition::InProgress, None));
    assert!(world.status.progress.is_some());
    world.supply = Supply::Ready;
    world.run(10);
    // In the middle of its trial, which goes on.
    world.supply = coming();
    assert_eq!(world.want("4").run(60).shown(), (Some("3"), Transition::InProgress, Some("3")));
    world.supply = Supply::Stuck {
        problem: Problem { reason: WorkerReason::ModelDigestMismatch, message: "no".into() },
        time: "t".into(),
    };
    assert_eq!(world.run(60).shown(), (Some("3"), Transition::BlockedByFailedLoad, Some("3")));
    assert_eq!(world.status.last_failure.as_ref().unwrap().reason, "ModelDigestMismatch");
    world.supply = Supply::Ready;
    world.image = ImageSupply::Coming(None);
    assert_eq!(world.run(60).shown(), (Some("3"), Transition::InProgress, Some("3")));
    assert!(world.status.message.contains("image i is being fetched"), "{}", world.status.message);
    let problem = Problem { reason: WorkerReason::ImageMissing, message: "no registry".into() };
    world.image = ImageSupply::Stuck { problem, time: "t".into() };
    assert_eq!(world.run(60).shown(), (Some("3"), Transition::BlockedByFailedLoad, Some("3")));
    assert_eq!(world.status.last_failure.as_ref().unwrap().reason, "ImageMissing");
    assert_eq!(world.switches, ["3"]);
    world.image = ImageSupply::Ready;
    assert_eq!(world.run(40).shown(), (Some("4"), Transition::UpToDate, Some("4")));
}

#[test]
fn a_full_disk_is_told_as_trouble_and_a_server_that_is_away_is_not() {
    let mut world = world(&[("3", Fate::Good)], "3");
    for (reason, expected) in [
        (WorkerReason::DiskFull, Some(WorkerReason::DiskFull)),
        (WorkerReason::ModelUnavailable, None),
    ] {
        let Supply::Coming { progress, .. } = coming() else { unreachable!() };
        let trouble = Some(Problem { reason, message: "7 bytes are missing".into() });
        world.supply = Supply::Coming { progress, trouble };
        assert_eq!(world.run(1).shown().1, Transition::InProgress);
        assert_eq!(world.status.trouble, expected);
        assert!(world.status.message.contains("7 bytes are missing"));
    }
}

#[test]
fn a_held_switch_is_prepared_and_not_made() {
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
fn what_cannot_be_served_leaves_what_is() {
    let mut memory = Memory::default();
    memory.switch(&serving("3", "replace"));
    memory.passed();
    let mut checks = Checks::new(Instant::now());
    checks.answered(
        Ok(()),
        &memory.current.as_ref().unwrap().serving.health.clone(),
        Instant::now(),
    );
    let facts = Facts {
        target: &serving("../4", "replace"),
        refusal: Some("version \"../4\" cannot name a directory"),
        supply: Supply::Ready,
        image: ImageSupply::Ready,
        current: Run::Up(&checks),
        good: Run::Up(&checks),
        leaving: Run::Absent(None),
        failures: 0,
        now: Instant::now(),
        wall: "then",
    };
    let decision = decide(&memory, &facts);
    assert_eq!(decision.memory, memory);
    assert_eq!(decision.status.transition, Transition::InvalidSpec);
    assert_eq!(decision.status.serving_version.as_deref(), Some("3"));
}

#[test]
fn versions_share_a_directory_unless_one_name_means_two_things() {
    let mut memory = Memory::default();
    let lineage = |memory: &Memory| memory.current.as_ref().unwrap().lineage;
    let names = |memory: &Memory| -> Vec<String> {
        memory.versions().iter().map(|edition| edition.version().to_owned()).collect()
    };
    memory.switch(&serving("3", "watch"));
    memory.passed();
    assert_eq!(names(&memory), ["3"]);
    memory.switch(&serving("4", "watch"));
    assert_eq!((names(&memory), lineage(&memory)), (vec!["3".to_owned(), "4".to_owned()], 1));
    // It fails, and what is wanted now has its name and another content.
    memory.failed("other", "r".into(), "m".into(), "t");
    assert_eq!(names(&memory), ["3"]);
    let mut other = serving("4", "watch");
    other.model.as_mut().unwrap().url.push('2');
    memory.switch(&other);
    assert_eq!((names(&memory), lineage(&memory)), (vec!["4".to_owned()], 2));
    // Back: the directory that it had.
    memory.failed("other", "r".into(), "m".into(), "t");
    assert_eq!((names(&memory), lineage(&memory)), (vec!["3".to_owned()], 1));
    memory.switch(&serving("5", "watch"));
    assert_eq!(lineage(&memory), 3, "whatever was in a directory once is not known any more");
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
    /// Whatever is wanted and whenever: once a version was good, what is served in the end is good, and
    /// if the last target works it is that one.
    #[test]
    fn it_comes_to_rest_on_what_works(
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
            prop_assert_eq!(world.memory.current, world.memory.good);
        }
    }
}

#[test]
fn a_server_of_two_versions_serves_the_higher_number_until_it_is_taken_away() {
    let now = Instant::now();
    let mut well = Checks::new(now);
    well.answered(Ok(()), &serving("3", "watch").health, now);
    let shown = |reload, good_version, version| {
        let good = Edition::new(&serving(good_version, reload), 1);
        let target = serving(version, reload);
        let memory = Memory {
            current: Some(Edition::new(&target, 1)),
            good: Some(good),
            lineage: 1,
            ..Memory::default()
        };
        let facts = Facts {
            target: &target,
            refusal: None,
            supply: Supply::Ready,
            image: ImageSupply::Ready,
            current: Run::Up(&well),
            good: Run::Up(&well),
            leaving: Run::Absent(None),
            failures: 0,
            now,
            wall: "then",
        };
        decide(&memory, &facts).status.serving_version.unwrap()
    };
    assert_eq!(shown("watch", "4", "3"), "4", "3 is on probation beside it");
    assert_eq!(shown("watch", "9", "10"), "10", "numbers, not texts");
    assert_eq!(shown("watch", "b", "a"), "a");
    assert_eq!(shown("replace", "4", "3"), "3");
}

#[test]
fn a_lower_version_is_served_once_the_higher_one_is_unloaded() {
    let now = Instant::now();
    let target = serving("3", "watch");
    let mut well = Checks::new(now);
    well.answered(Ok(()), &target.health, now);
    let later = now + Duration::from_secs(30);
    let edition = |version: &str| Edition::new(&serving(version, "watch"), 1);
    let on_trial = |good: &str| Memory {
        current: Some(edition("3")),
        good: Some(edition(good)),
        lineage: 1,
        ..Memory::default()
    };
    let look = |memory: &Memory, leaving| {
        let facts = Facts {
            target: &target,
            refusal: None,
            supply: Supply::Ready,
            image: ImageSupply::Ready,
            current: Run::Up(&well),
            good: Run::Up(&well),
            leaving,
            failures: 0,
            now: later,
            wall: "then",
        };
        decide(memory, &facts)
    };
    let shown = |decision: &Decision| {
        (decision.status.serving_version.clone().unwrap(), decision.status.transition)
    };
    let passed = look(&on_trial("4"), Run::Absent(None));
    assert_eq!(passed.memory.good, passed.memory.current);
    assert_eq!(passed.memory.versions().len(), 1, "4 is taken away");
    let leaving = look(&passed.memory, Run::Up(&well));
    assert_eq!(shown(&leaving), ("4".to_owned(), Transition::InProgress));
    let mut gone = well.clone();
    gone.answered(Err("404".to_owned()), &target.health, later);
    for gone in [Run::Up(&gone), Run::Absent(None)] {
        let left = look(&leaving.memory, gone);
        assert_eq!(shown(&left), ("3".to_owned(), Transition::UpToDate));
        assert_eq!(left.memory.leaving, None);
    }
    assert_eq!(look(&on_trial("2"), Run::Absent(None)).memory.leaving, None, "3 answers already");
}
