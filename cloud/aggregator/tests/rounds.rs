//! A world of workers around the pure [`Run`]: honest, slow, absent and hostile ones, and a kill of
//! the aggregator after each event. Every run ends, or names an action that lets it end. Honest data
//! counts with any shares of the workers.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use neptune_aggregator::run::{
    AcceptedUpdate, Event, Outputs, Problem, Rejection, Run, TaskResult, UnixSeconds, Verdict, Work,
};
use neptune_content::Digest;
use neptune_wire::{
    ContentReference, TaskId,
    aggregator::{
        FailedTask, InitialWeights, OnTooFewWorkers, ResultState, RunPhase, RunRequest, RunTask,
        RunWorker, UpdateReport,
    },
    fixtures::run_request,
};

const SEEDS: u64 = 400;
const ROUNDS: u32 = 6;
const TIMEOUT: u64 = 3600;
/// Virtual time in which a run must have come to rest.
const HORIZON: u64 = 3 * 86_400;
/// Events of one run, far above what any needs.
const MAX_EVENTS: usize = 20_000;

/// What a worker does with its tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behavior {
    Honest,
    /// Honest, and takes fifty times as long.
    Slow,
    /// The worker never sends an update.
    Absent,
    /// Honest, and answers in round 2 only after these seconds.
    Away(u64),
    /// The containers of the worker fail until the node gives up.
    Crashes,
    /// The updates of the worker contain NaN.
    NotFinite,
    /// The updates of the worker have ten times the honest norm.
    LargeNorm,
    /// The worker reports a thousand times its samples.
    ManySamples,
}

impl Behavior {
    fn is_honest(self) -> bool {
        matches!(self, Self::Honest | Self::Slow | Self::Absent | Self::Away(_))
    }
}

#[derive(Debug, Clone, Copy)]
struct Worker {
    samples: u64,
    behavior: Behavior,
}

#[derive(Debug, Clone)]
struct Case {
    workers: BTreeMap<String, Worker>,
    min_workers: Option<u32>,
    on_too_few_workers: OnTooFewWorkers,
}

impl Case {
    fn new(samples: &[u64], behaviors: &[Behavior]) -> Self {
        let workers = samples.iter().enumerate().map(|(at, samples)| {
            let behavior = behaviors.get(at).copied().unwrap_or(Behavior::Honest);
            (format!("w{at}"), Worker { samples: *samples, behavior })
        });
        let on_too_few_workers = OnTooFewWorkers::Fail;
        Self { workers: workers.collect(), min_workers: None, on_too_few_workers }
    }

    /// A case by chance. At least half of the samples are those of honest workers in most cases.
    fn by_chance(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(3..=9);
        let samples = match random.u8(0..3) {
            0 => dirichlet(&mut random, count),
            1 => [600, 600, 6, 6, 6].into_iter().cycle().take(count).collect(),
            _ => vec![200; count],
        };
        let is_hostile = random.bool();
        let behaviors = samples.iter().map(|_| match random.u8(0..20) {
            0 | 1 => Behavior::Slow,
            2 => Behavior::Absent,
            3 | 4 => Behavior::Away(random.u64(60..900)),
            5 => Behavior::Crashes,
            6 | 7 if is_hostile => Behavior::NotFinite,
            8 | 9 if is_hostile => Behavior::LargeNorm,
            10 | 11 if is_hostile => Behavior::ManySamples,
            _ => Behavior::Honest,
        });
        let behaviors: Vec<_> = behaviors.collect();
        let mut case = Self::new(&samples, &behaviors);
        if random.bool() {
            case.min_workers = Some(random.u32(1..=u32::try_from(count).unwrap()));
        }
        if random.u8(0..4) == 0 {
            case.on_too_few_workers = OnTooFewWorkers::Wait;
        }
        case
    }

    fn request(&self) -> RunRequest {
        let worker = |(name, worker): (&String, &Worker)| {
            let node = format!("node-{name}").parse().unwrap();
            let dataset = format!("data-{name}").parse().unwrap();
            (name.clone(), RunWorker { node, dataset, samples: Some(worker.samples) })
        };
        let mut request = run_request(self.workers.iter().map(worker));
        let settings = &mut request.settings;
        settings.rounds = ROUNDS;
        settings.min_workers = self.min_workers;
        settings.round_timeout_seconds = Some(TIMEOUT);
        settings.on_too_few_workers = self.on_too_few_workers;
        settings.rule.refuse = None;
        settings.initial = Some(InitialWeights { url: None, sha256: content("initial").sha256 });
        request
    }
}

/// Shares by a symmetric Dirichlet distribution of 0.1, of 2,000 samples; at least one each.
fn dirichlet(random: &mut fastrand::Rng, count: usize) -> Vec<u64> {
    let mut gamma = || -(1.0 - random.f64()).ln() * random.f64().powi(10);
    let shares: Vec<f64> = (0..count).map(|_| gamma()).collect();
    let sum: f64 = shares.iter().sum();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    shares.iter().map(|it| ((it / sum * 2000.0) as u64).max(1)).collect()
}

fn content(text: &str) -> ContentReference {
    ContentReference { sha256: Digest::of_bytes(text.as_bytes()).to_string(), bytes: 100 }
}

struct World {
    case: Case,
    request: RunRequest,
    run: Run,
    now: UnixSeconds,
    /// Answers that are on their way.
    due: BTreeMap<(UnixSeconds, String), RunTask>,
    known: BTreeSet<TaskId>,
    /// The first verdict of each task.
    verdicts: BTreeMap<TaskId, Verdict>,
    /// The state of each worker that answered before its round closed, by run and round.
    answers: BTreeMap<(u32, u32), BTreeMap<String, ResultState>>,
    /// Honest samples that arrived in the last closed round, and those that count.
    honest: (u64, u64),
    events: usize,
}

impl World {
    fn new(case: Case) -> Self {
        let request = case.request();
        let run = Run::start(request.clone(), 1000).unwrap();
        let (due, known, verdicts, answers) = Default::default();
        let (now, honest, events) = (1000, (0, 0), 0);
        Self { case, request, run, now, due, known, verdicts, answers, honest, events }
    }

    /// Applies an event, and kills the aggregator: it continues with the stored state.
    fn apply(&mut self, event: Event) -> Result<(), String> {
        self.events += 1;
        if self.events > MAX_EVENTS {
            return Err(format!("no rest after {MAX_EVENTS} events: {}", self.summary()));
        }
        let after = match self.run.next(event, self.now) {
            Ok(after) => after,
            Err(Rejection::RoundClosed | Rejection::OtherUpdateAccepted(_)) => return Ok(()),
            Err(rejection) => return Err(format!("{rejection}: {}", self.summary())),
        };
        let stored = serde_json::to_string(&after).unwrap();
        let after: Run = serde_json::from_str(&stored).unwrap();
        self.check_step(&after)?;
        self.record_answers(&after);
        self.run = after;
        Ok(())
    }

    /// Records the answers of an open round. A deadline that begins again takes failures back.
    fn record_answers(&mut self, after: &Run) {
        if after.is_accepting() {
            let state = |verdict: &Verdict| match verdict {
                Verdict::Accepted(_) => ResultState::Accepted,
                Verdict::Refused { .. } => ResultState::Refused,
                Verdict::Failed(_) => ResultState::Failed,
            };
            let results = after.results.iter();
            let answers = results.map(|(name, it)| (name.clone(), state(&it.verdict))).collect();
            self.answers.insert((after.number, after.round), answers);
        }
    }

    /// Each closed round has one row per worker, with the state of its answer and its own numbers.
    fn check_rows(&self) -> Result<(), String> {
        for record in self.run.status(0).history {
            let of_round = self.answers.get(&(self.run.number, record.round));
            let mut names = BTreeSet::new();
            let (mut samples, mut counted, mut weight) = (0, 0, 0.0);
            for row in &record.workers {
                let worker = self.case.workers[&row.name];
                let answer = of_round.and_then(|it| it.get(&row.name)).copied();
                let reason = row.reason.as_deref();
                let is_right = match row.state {
                    ResultState::Accepted => {
                        (samples, counted) = (samples + worker.samples, counted + 1);
                        weight += row.weight.unwrap_or_default();
                        row.samples == Some(worker.samples) && row.norm.is_some()
                    }
                    ResultState::Refused if worker.behavior == Behavior::NotFinite => {
                        reason == Some("NotFinite")
                    }
                    ResultState::Refused => reason == Some("NormTooLarge"),
                    ResultState::Failed => reason == Some("ScriptFailed"),
                    ResultState::Pending => answer.is_none() && row.samples.is_none(),
                    ResultState::Excluded => reason.is_some() && row.samples.is_none(),
                };
                // The last answer closes the round, and is in no open one.
                let is_known = answer.is_none_or(|answer| answer == row.state);
                if !is_right || !is_known || !names.insert(&row.name) {
                    return Err(format!("round {}, {answer:?}: {row:?}", record.round));
                }
            }
            let is_complete = names.iter().copied().eq(self.case.workers.keys());
            let is_sum = (samples, counted) == (record.samples, record.participants);
            if !is_complete || !is_sum || (weight - 1.0_f64).abs() > 1e-9 {
                return Err(format!("the rows are not those of the round: {record:?}"));
            }
        }
        Ok(())
    }

    /// One verdict per task, and one close per round.
    fn check_step(&mut self, after: &Run) -> Result<(), String> {
        for result in after.results.values() {
            if matches!(result.verdict, Verdict::Failed(_)) {
                continue;
            }
            let first = self.verdicts.entry(result.task.clone()).or_insert(result.verdict.clone());
            if *first != result.verdict {
                return Err(format!("worker {} has two verdicts", result.worker));
            }
        }
        let rounds: Vec<_> = after.status(0).history.iter().map(|it| it.round).collect();
        if !rounds.iter().copied().eq(1..=u32::try_from(rounds.len()).unwrap()) {
            return Err(format!("rounds closed: {rounds:?}"));
        }
        if let (Some(Work::Aggregate { record: old, .. }), Some(Work::Aggregate { record, .. })) =
            (self.run.work(), after.work())
            && old != record
        {
            return Err("a round has two close records".to_owned());
        }
        Ok(())
    }

    fn work(&mut self, work: Work) -> Result<(), String> {
        match work {
            Work::Fetch(_) => self.apply(Event::Fetched(Ok(content("initial")))),
            Work::Aggregate { round, .. } => {
                self.count_honest();
                let outputs =
                    || Outputs { weights: content(&format!("round {round}")), velocity: None };
                // A kill before the files were stored repeats the aggregation.
                self.apply(Event::Computed(outputs()))?;
                self.apply(Event::Computed(outputs()))?;
                self.apply(Event::Stored)
            }
            other => Err(format!("unexpected work {other:?}")),
        }
    }

    fn count_honest(&mut self) {
        let status = self.run.status(0);
        self.honest = (0, 0);
        for (name, worker) in self.case.workers.iter().filter(|(_, it)| it.behavior.is_honest()) {
            let Some(result) = status.workers.get(name).filter(|it| it.sha256.is_some()) else {
                continue;
            };
            self.honest.0 += worker.samples;
            if result.state == ResultState::Accepted {
                self.honest.1 += worker.samples;
            }
        }
    }

    /// Lets workers begin the tasks that they have not seen yet.
    fn begin_tasks(&mut self) {
        for task in self.run.open_tasks() {
            let Worker { samples, behavior } = self.case.workers[&task.worker];
            if behavior == Behavior::Absent || !self.known.insert(task.id.clone()) {
                continue;
            }
            let seconds = match behavior {
                Behavior::Slow => 50 * (2 + samples / 20),
                Behavior::Away(seconds) if task.round == 2 => seconds,
                _ => 2 + samples / 20,
            };
            self.due.insert((self.now + seconds, task.worker.clone()), task);
        }
    }

    fn answer(&mut self, task: RunTask) -> Result<(), String> {
        let Worker { samples, behavior } = self.case.workers[&task.worker];
        if behavior == Behavior::Crashes {
            let (reason, message) = ("ScriptFailed".to_owned(), "exit code 1".to_owned());
            let failed = vec![FailedTask { id: task.id, reason, message, is_refused: false }];
            let request = RunRequest { failed, ..self.request.clone() };
            return self.apply(Event::Request(Box::new(request)));
        }
        let reported = if behavior == Behavior::ManySamples { samples * 1000 } else { samples };
        let report = UpdateReport {
            samples: reported,
            counted_samples: Some(samples),
            ..Default::default()
        };
        let update = content(&format!("{} {}", task.worker, task.id.0));
        #[allow(clippy::cast_precision_loss)]
        let norm = 0.1 * (samples as f64).powf(0.7) / f64::from(1 + task.round);
        let verdict = match behavior {
            Behavior::NotFinite => {
                let problem = Problem::new("NotFinite", "sent NaN in \"w\" (first at 0)");
                Verdict::Refused { sha256: update.sha256, report, problem }
            }
            Behavior::LargeNorm => {
                let norm = 10.0 * norm;
                Verdict::Accepted(AcceptedUpdate { content: update, report, norm })
            }
            _ => Verdict::Accepted(AcceptedUpdate { content: update, report, norm }),
        };
        self.apply(Event::Judged(TaskResult { worker: task.worker, task: task.id, verdict }))
    }

    /// Runs until the run ended, or nothing happens any more.
    fn run_to_rest(&mut self) -> Result<(), String> {
        let until = self.now + HORIZON;
        while !self.run.has_ended() {
            if let Some(work) = self.run.work() {
                self.work(work)?;
                continue;
            }
            self.begin_tasks();
            let answer = self.due.keys().next().map(|(at, _)| *at);
            let deadline = self.run.deadline();
            let next = answer.into_iter().chain(deadline).min();
            let Some(next) = next.filter(|it| *it <= until) else { return Ok(()) };
            self.now = self.now.max(next);
            if answer == Some(next) {
                let (_, task) = self.due.pop_first().unwrap();
                self.answer(task)?;
            } else {
                self.apply(Event::Tick)?;
            }
        }
        Ok(())
    }

    /// A run that is at rest has ended, or ends after the action that it names.
    fn check_end(&mut self) -> Result<(), String> {
        self.run_to_rest()?;
        if !self.run.has_ended() {
            let before = self.summary();
            if !self.act()? {
                return Err(format!("stuck, and names no action: {before}"));
            }
            self.run_to_rest()?;
            if !self.run.has_ended() {
                return Err(format!("stuck, also after the named action: {before}"));
            }
        }
        let status = self.run.status(0);
        let names_action = status.message.contains("kubectl neptune training restart");
        if status.phase == RunPhase::Failed && !names_action {
            return Err(format!("failed without an action: {}", self.summary()));
        }
        Ok(())
    }

    /// Takes the action that the run names.
    fn act(&mut self) -> Result<bool, String> {
        let message = self.run.status(0).message;
        if let Some((_, rest)) = message.split_once("lower spec.aggregation.minWorkers to ") {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            self.case.min_workers = Some(digits.parse().unwrap());
            self.request.settings.min_workers = self.case.min_workers;
        } else if message.contains("kubectl neptune training restart") {
            for worker in self.case.workers.values_mut() {
                worker.behavior = Behavior::Honest;
            }
            self.request.run += 1;
        } else {
            return Ok(false);
        }
        self.apply(Event::Request(Box::new(self.request.clone())))?;
        Ok(true)
    }

    /// Honest updates that arrived count, and most honest data, or nothing is published.
    fn check_honest(&self) -> Result<(), String> {
        let (arrived, counted) = self.honest;
        if 10 * counted < 9 * arrived {
            return Err(format!("{counted} of {arrived} honest samples count: {}", self.summary()));
        }
        let all: u64 = self.case.workers.values().map(|it| it.samples).sum();
        let status = self.run.status(0);
        let Some(last) = status.history.last() else { return Ok(()) };
        if 2 * last.samples < all && !last.misses_most_samples() {
            return Err(format!(
                "{} of {all} samples count unseen: {}",
                last.samples,
                self.summary()
            ));
        }
        Ok(())
    }

    fn summary(&self) -> String {
        let status = self.run.status(0);
        let workers = self.case.workers.iter().map(|(name, worker)| {
            let state = status.workers.get(name).map(|it| it.state);
            format!("{name} {} {:?} {state:?}", worker.samples, worker.behavior)
        });
        let workers: Vec<_> = workers.collect();
        let min = self.case.min_workers;
        format!(
            "{:?} in round {}, minWorkers {min:?}, {:?}, {}: {}",
            status.phase,
            status.round,
            self.case.on_too_few_workers,
            workers.join(", "),
            status.message
        )
    }
}

/// Runs a case to its end.
fn ended(case: Case) -> Result<World, String> {
    let mut world = World::new(case);
    world.check_end()?;
    world.check_honest()?;
    world.check_rows()?;
    Ok(world)
}

#[test]
fn every_run_ends_or_names_an_action_that_ends_it() {
    let failed = (0..SEEDS).filter_map(|seed| {
        let error = ended(Case::by_chance(seed)).err()?;
        Some(format!("seed {seed}: {error}"))
    });
    let failed: Vec<_> = failed.collect();
    let first: Vec<_> = failed.iter().take(5).cloned().collect();
    assert!(failed.is_empty(), "{} of {SEEDS} seeds:\n{}", failed.len(), first.join("\n"));
}

#[test]
fn unequal_shares_end_with_the_samples_of_all() {
    for min_workers in [None, Some(3)] {
        let case = Case { min_workers, ..Case::new(&[600, 600, 6, 6, 6], &[]) };
        let world = ended(case).unwrap();
        let status = world.run.status(0);
        let samples: Vec<_> = status.history.iter().map(|it| it.samples).collect();
        assert_eq!(samples, [1218; 6], "minWorkers {min_workers:?}");
        assert_eq!(status.phase, RunPhase::Succeeded);
    }
}

#[test]
fn run_continues_without_a_worker_that_sends_nan() {
    for samples in [vec![100; 3], vec![100; 4]] {
        let hostile = samples.len() - 2;
        let world = ended(Case::new(&samples, &vec![Behavior::NotFinite; hostile])).unwrap();
        let status = world.run.status(0);
        assert_eq!((status.phase, status.round), (RunPhase::Succeeded, 6), "{}", world.summary());
        assert_eq!(status.history[0].participants, 2);
    }
}

#[test]
fn node_that_is_offline_for_minutes_is_waited_for() {
    let world = ended(Case::new(&[100, 200, 300], &[Behavior::Away(300)])).unwrap();
    let status = world.run.status(0);
    assert_eq!(status.phase, RunPhase::Succeeded, "{}", world.summary());
    let samples: Vec<_> = status.history.iter().map(|it| it.samples).collect();
    assert_eq!(samples, [600; 6]);
    assert!(status.history[1].seconds >= 300);
}

#[test]
fn absent_worker_costs_the_grace_and_not_the_deadline() {
    let world = ended(Case::new(&[100; 5], &[Behavior::Absent])).unwrap();
    for record in &world.run.status(0).history {
        assert!(record.seconds <= 20, "round {} took {} s", record.round, record.seconds);
        assert_eq!(record.participants, 4);
    }
}
