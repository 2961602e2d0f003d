//! Decides the steps for workers and the health of each, from desired and observed state.
//!
//! The first row that matches applies:
//!
//! | Docker | operation | model and dataset | container | then |
//! |---|---|---|---|---|
//! | unknown | | | | wait: `DockerUnavailable` |
//! | a container of it unknown | | | | wait: `ContainerRefused` |
//! | | in flight, or observed before its end | | | wait |
//! | | | none usable | of this object, alive | keep it |
//! | | | none usable | other | remove it; wait: its reason |
//! | | | usable | finished with this spec | remove live ones |
//! | | | usable, but a device is not there or not free | any | remove it; wait: `DeviceMissing`, `DeviceBusy` |
//! | | | usable | alive with this spec, a probe failed | stop it: `Unhealthy` |
//! | | | usable | alive with this spec | keep it; remove duplicates |
//! | | | usable | being removed | wait for the engine's event |
//! | | | usable | other or none | after the backoff: replace it by one with this spec |

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use neptune_wire::{RestartTime, WorkerName, WorkerReason, WorkerState};

use crate::{
    desired::WantedWorker,
    domain::{
        health::WorkerHealth,
        observed_container::{ContainerState, ObservedContainer},
        probe::ProbeVerdict,
        worker_count::{FinishedRun, ReportedStatus},
    },
    plan::{Convergence, NodeFacts, NodePlan, Target, attempts::Attempts},
    worker::{
        completion::{finished_health, reported_health},
        container::{MissingInput, RunnableWorker, RunnableWorkers},
        counts::Counts,
        health::{FAILED_AFTER, missing_health, problem_health, running_despite, waiting},
        probed::{is_unconfirmed, not_ready},
        reload::ReloadDecision,
    },
};

/// A worker that failed that often is reported as running after it has run for this long.
const SETTLED: Duration = Duration::from_secs(10);

/// Adds the steps and the health of all wanted workers.
pub fn plan_workers(
    plan: &mut NodePlan,
    facts: &NodeFacts<'_>,
    resolved: &RunnableWorkers<'_>,
    reloads: &BTreeMap<WorkerName, ReloadDecision>,
    counts: &Counts,
    now: Instant,
) {
    for (name, wanted) in &facts.desired.workers {
        let idle = Attempts::default();
        let attempts = facts.attempts.get(name).unwrap_or(&idle);
        let health = match (facts.observed, resolved.get(name)) {
            (Err(why), _) => waiting(WorkerReason::DockerUnavailable, why),
            (Ok(_), _) if facts.undescribed.contains_key(name) => {
                undescribed(facts, wanted, &facts.undescribed[name])
            }
            (Ok(_), _) if !facts.is_settled(attempts) => in_flight(attempts),
            (Ok(_), Some(Ok(worker))) => {
                let requested = wanted.worker.restarted_at.as_ref();
                let last_run = counts.finished(&wanted.uid, name);
                let progress = Progress {
                    attempts,
                    reload: reloads.get(name),
                    reported: ReportedStatus::parse(counts.status(&wanted.uid, name)),
                    finished: last_run
                        .filter(|run| run.is_end_of(&worker.container.hash, requested)),
                    // The container of the run may be gone.
                    restarted_at: last_run.and_then(|run| run.restarted_at.as_ref()).max(requested),
                };
                plan_worker(plan, facts, (wanted, worker), &progress, now)
            }
            (Ok(_), Some(Err(missing))) => {
                // The container of a finished worker stays until it is known whether it is the
                // wanted one.
                match counts.finished(&wanted.uid, name) {
                    Some(_) => missing_health(missing),
                    None => plan_without_inputs(plan, facts, wanted, missing, attempts, now),
                }
            }
            (Ok(_), None) => in_flight(attempts),
        };
        let restarts = attempts.started.as_ref().map_or(0, |(_, restarts)| *restarts);
        plan.health.insert(name.clone(), WorkerHealth { restarts, ..health });
    }
}

/// What is known of a worker beside its target and its containers.
struct Progress<'a> {
    attempts: &'a Attempts,
    reload: Option<&'a ReloadDecision>,
    reported: ReportedStatus,
    /// Set if it is finished with the target's specification.
    finished: Option<&'a FinishedRun>,
    /// The latest restart that was requested, as far as it is known.
    restarted_at: Option<&'a RestartTime>,
}

fn plan_worker(
    plan: &mut NodePlan,
    facts: &NodeFacts<'_>,
    (wanted, worker): (&WantedWorker, &RunnableWorker<'_>),
    progress: &Progress<'_>,
    now: Instant,
) -> WorkerHealth {
    let name = &wanted.worker.name;
    let Progress { attempts, reload, reported, finished, restarted_at } = *progress;
    if let Some(finished) = finished {
        // The exited container stays for its log.
        let alive = facts.containers(name).into_iter().filter(|it| it.is_alive());
        plan.remove(name, alive.map(|it| it.id.clone()).collect(), attempts, now);
        return finished_health(finished);
    }
    let devices = match facts.devices_of(name, &worker.container) {
        Ok(devices) => devices,
        Err(problem) => {
            plan.release_devices(facts, name, attempts, now);
            return waiting(problem.reason, &problem.message);
        }
    };
    let healthy = |plan: &mut NodePlan, container: &ObservedContainer| {
        let verdict = facts.probes.verdict(name, container);
        let healthy = running(worker, reload);
        running_health(plan, (container, verdict), progress, healthy, now)
    };
    let target = Target {
        name,
        owner: &wanted.owner,
        uid: &wanted.uid,
        container: &worker.container,
        devices,
        restart: reload.is_some_and(|reload| reload.restart),
        restarted_at,
        kept_volumes: &[],
    };
    if let Some(container) = target.running(&facts.containers(name))
        && let ProbeVerdict::Unhealthy(failed) = facts.probes.verdict(name, container)
        && container.state == ContainerState::Running
    {
        plan.stop(name, (container, failed), attempts, now);
        return problem_health(&failed.stopping(), attempts.failures);
    }
    if let Some(reload) = reload {
        if let Some(at) = reload.next_at {
            plan.schedule(at);
        }
        if let Some((dir, versions)) = &reload.place {
            plan.place(name, dir.clone(), versions.clone(), attempts, now);
            return match target.running(&facts.containers(name)) {
                Some(running) => healthy(plan, running),
                None => in_flight(attempts),
            };
        }
    }
    match plan.converge(facts, &target, attempts, now) {
        Convergence::Running(running) => healthy(plan, running),
        Convergence::Removing | Convergence::Starting => in_flight(attempts),
        Convergence::BackingOff => {
            let health = stopped(attempts);
            if reported == ReportedStatus::Failed {
                health.after_reported_failure()
            } else {
                health
            }
        }
    }
}

/// A worker whose inputs are not on the node keeps running with the inputs that it has.
fn plan_without_inputs(
    plan: &mut NodePlan,
    facts: &NodeFacts<'_>,
    wanted: &WantedWorker,
    missing: &MissingInput,
    attempts: &Attempts,
    now: Instant,
) -> WorkerHealth {
    if plan.keep_alive(facts, (&wanted.worker.name, &wanted.uid), attempts, now) {
        let message =
            format!("keeps running with its previous inputs: {}", missing.problem.message);
        return running_despite(&missing.problem, message);
    }
    missing_health(missing)
}

/// The health of a running worker, with what there is to know about its model.
fn running(worker: &RunnableWorker<'_>, reload: Option<&ReloadDecision>) -> WorkerHealth {
    if let Some(problem) = worker.model_problem {
        let message =
            format!("running with the previous version of the model: {}", problem.message);
        return running_despite(problem, message);
    }
    let message = reload.map(|reload| reload.note.clone()).unwrap_or_default();
    WorkerHealth { state: WorkerState::Running, reason: None, message, restarts: 0 }
}

fn running_health(
    plan: &mut NodePlan,
    (container, verdict): (&ObservedContainer, ProbeVerdict<'_>),
    Progress { attempts, reported, .. }: &Progress<'_>,
    healthy: WorkerHealth,
    now: Instant,
) -> WorkerHealth {
    if container.state == ContainerState::Paused {
        return waiting(
            WorkerReason::ContainerRefused,
            &format!("container {0} is paused; resume it with docker unpause {0}", container.id),
        );
    }
    if let Some(health) = reported_health(*reported, &container.id) {
        return health;
    }
    if attempts.failures >= FAILED_AFTER && is_unconfirmed(attempts, verdict) {
        return stopped(attempts);
    }
    if let ProbeVerdict::NotReady(kind, why) = verdict {
        return not_ready(kind, why);
    }
    if attempts.failures >= FAILED_AFTER && !attempts.has_run_for(SETTLED, now) {
        if let Some(since) = attempts.running_since() {
            plan.schedule(since + SETTLED);
        }
        return stopped(attempts);
    }
    healthy
}

/// The health of a worker with a container that the engine does not describe. One that ran when it
/// was last described counts as running.
fn undescribed(facts: &NodeFacts<'_>, wanted: &WantedWorker, why: &str) -> WorkerHealth {
    let containers = facts.containers(&wanted.worker.name);
    let is_live = |it: &&ObservedContainer| {
        it.state == ContainerState::Running && it.identity.uid == wanted.uid
    };
    if !containers.iter().any(is_live) {
        return waiting(WorkerReason::ContainerRefused, why);
    }
    let message = format!("was running when it was last described: {why}");
    WorkerHealth { state: WorkerState::Running, reason: None, message, restarts: 0 }
}

/// The health of a worker with an operation in flight.
fn in_flight(attempts: &Attempts) -> WorkerHealth {
    if attempts.problem.is_some() {
        stopped(attempts)
    } else {
        waiting(WorkerReason::Starting, "the container is starting")
    }
}

/// The health of a worker that waits for its next attempt.
fn stopped(attempts: &Attempts) -> WorkerHealth {
    match &attempts.problem {
        Some(problem) => problem_health(problem, attempts.failures),
        None => waiting(WorkerReason::Starting, "the container is starting"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use neptune_wire::{AgentInstance, ObjectKey};

    use super::*;
    use crate::domain::volume::ObservedVolume;
    use crate::{
        backoff::RECHECK_INTERVAL,
        desired::Desired,
        domain::{
            artifact::Availability,
            observed_container::{ContainerExit, ContainerIdentity},
            outcome::StepOutcome,
            problem::Problem,
            step::Step,
        },
        fixtures::{
            local_file, model_key, node_context, observed_container, wanted_gateway, wanted_worker,
        },
        plan::{devices::GrantedDevices, remove_unwanted},
        probes::WorkerProbes,
        values::resolve::WorkerValues,
        worker::container::{NodeInputs, WorkerInputs, resolve_worker, resolve_workers},
    };

    mod devices;
    mod probes;
    mod restart;
    mod values;
    mod volumes;

    const MODEL: &str = "/data/m.bin";

    /// A node with one desired worker and no container yet.
    struct Node {
        desired: Desired,
        containers: Vec<ObservedContainer>,
        docker: Result<u64, &'static str>,
        models: BTreeMap<ObjectKey, Availability>,
        datasets: BTreeMap<ObjectKey, Availability>,
        gateways: BTreeMap<WorkerName, Result<Option<std::path::PathBuf>, String>>,
        values: BTreeMap<WorkerName, Result<WorkerValues, Problem>>,
        attempts: BTreeMap<WorkerName, Attempts>,
        is_complete: bool,
        keep: BTreeSet<ObjectKey>,
        reloads: BTreeMap<WorkerName, ReloadDecision>,
        counts: Counts,
        undescribed: BTreeMap<WorkerName, String>,
        devices: GrantedDevices,
        volumes: Vec<ObservedVolume>,
        probes: WorkerProbes,
    }

    fn node() -> Node {
        let wanted = wanted_worker();
        let available = Availability { usable: Some(local_file(MODEL)), ..Availability::default() };
        Node {
            models: [(model_key(), available)].into(),
            desired: Desired {
                workers: [(wanted.worker.name.clone(), wanted)].into(),
                ..Desired::default()
            },
            containers: Vec::new(),
            docker: Ok(1),
            datasets: BTreeMap::new(),
            gateways: BTreeMap::new(),
            values: BTreeMap::new(),
            attempts: BTreeMap::new(),
            is_complete: true,
            keep: BTreeSet::new(),
            reloads: BTreeMap::new(),
            counts: Counts::default(),
            undescribed: BTreeMap::new(),
            devices: GrantedDevices::new(),
            volumes: Vec::new(),
            probes: WorkerProbes::default(),
        }
    }

    fn name() -> WorkerName {
        wanted_worker().worker.name
    }

    fn hash() -> neptune_wire::ContentHash {
        let model = local_file(MODEL);
        let inputs =
            WorkerInputs { model: Some((&model_key(), &model)), ..WorkerInputs::default() };
        resolve_worker(&wanted_worker(), inputs, &node_context()).container.hash
    }

    fn observed(id: &str, state: ContainerState) -> ObservedContainer {
        let identity = ContainerIdentity {
            node: node_context().node,
            instance: AgentInstance("this".into()),
            owner: wanted_worker().owner,
            uid: wanted_worker().uid,
            worker: name(),
            spec_hash: hash().to_string(),
            restarts: 0,
            restarted_at: None,
        };
        ObservedContainer { identity, state, started_at: String::new(), ..observed_container(id) }
    }

    fn ended(exit_code: i64) -> ContainerState {
        ContainerState::Exited(ContainerExit {
            exit_code,
            out_of_memory: false,
            log_tail: "last lines".into(),
        })
    }

    impl Node {
        fn plan(&self, now: Instant) -> NodePlan {
            let context = node_context();
            let facts = NodeFacts {
                desired: &self.desired,
                is_complete: self.is_complete,
                keep: &self.keep,
                instance: &AgentInstance("this".into()),
                context: &context,
                observed: self.docker.map(|seq| (self.containers.as_slice(), seq)),
                attempts: &self.attempts,
                undescribed: &self.undescribed,
                devices: &self.devices,
                volumes: &self.volumes,
                probes: &self.probes,
            };
            let inputs = NodeInputs {
                models: &self.models,
                datasets: &self.datasets,
                gateways: &self.gateways,
                values: &self.values,
            };
            let resolved = resolve_workers(&self.desired, inputs, &context);
            let mut plan = NodePlan::default();
            remove_unwanted(&mut plan, &facts, now);
            plan_workers(&mut plan, &facts, &resolved, &self.reloads, &self.counts, now);
            plan
        }

        fn attempts(&mut self) -> &mut Attempts {
            self.attempts.entry(name()).or_default()
        }

        fn observe(&mut self, containers: Vec<ObservedContainer>, now: Instant) {
            self.containers = containers;
            let containers: Vec<ObservedContainer> = self.containers.clone();
            self.attempts().observe(&containers.iter().collect::<Vec<_>>(), now, 0);
        }
    }

    fn health(plan: &NodePlan) -> (WorkerState, Option<WorkerReason>) {
        let health = &plan.health[&name()];
        (health.state, health.reason)
    }

    fn removed(plan: &NodePlan) -> Vec<&str> {
        let ids = plan.steps.iter().flat_map(|step| match step {
            Step::Start { remove: ids, .. } | Step::Remove { ids, .. } => {
                ids.iter().map(String::as_str)
            }
            Step::Stop { .. } | Step::Place { .. } => [].iter().map(String::as_str),
        });
        ids.collect()
    }

    fn starts(plan: &NodePlan) -> bool {
        plan.steps.iter().any(|step| matches!(step, Step::Start { .. }))
    }

    #[test]
    fn undescribed_container_stops_only_its_own_worker() {
        let (mut node, now) = (node(), Instant::now());
        let other = |number: usize| -> WorkerName { format!("s-w-{number}").parse().unwrap() };
        for number in 10..13 {
            let mut wanted = wanted_worker();
            wanted.worker.name = other(number);
            node.desired.workers.insert(other(number), wanted);
        }
        node.undescribed.insert(other(11), "the engine does not describe it".to_owned());
        let plan = node.plan(now);
        let started: Vec<&str> = plan.steps.iter().map(|step| step.worker().as_str()).collect();
        assert_eq!(started, ["s-w-1", "s-w-10", "s-w-12"]);
        let health = &plan.health[&other(11)];
        assert_eq!(
            (health.state, health.reason, &*health.message),
            (
                WorkerState::Pending,
                Some(WorkerReason::ContainerRefused),
                "the engine does not describe it"
            )
        );
    }

    #[test]
    fn missing_worker_is_started_once_and_running_one_kept() {
        let (mut node, now) = (node(), Instant::now());
        let plan = node.plan(now);
        assert!(matches!(&plan.steps[..], [Step::Start { identity, remove, may_pull: false, .. }]
            if identity.restarts == 0 && remove.is_empty()));
        assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::Starting)));

        node.attempts().busy = true;
        assert_eq!(node.plan(now).steps, [], "an operation is in flight");
        node.attempts().done(
            StepOutcome::Started { id: "1".into() },
            Some((hash().to_string(), 0)),
            2,
            now,
            0,
        );
        assert_eq!(node.plan(now).steps, [], "the observation is older than the start");
        node.docker = Ok(2);
        node.observe(vec![observed("1", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert_eq!((plan.steps.len(), plan.next_at), (0, None), "converged");
        assert_eq!(health(&plan), (WorkerState::Running, None));
    }

    #[test]
    fn finished_worker_is_not_started_again_with_its_spec() {
        let (mut node, now) = (node(), Instant::now());
        let finish = |node: &mut Node, spec_hash: &str, is_completed| {
            let (wanted, message) = (wanted_worker(), "done".to_owned());
            let run = FinishedRun {
                spec_hash: spec_hash.to_owned(),
                restarted_at: None,
                is_completed,
                message,
            };
            node.counts.set_finished(&wanted.owner, ("uid", &name()), Some(run));
        };
        finish(&mut node, hash().as_str(), true);
        node.observe(vec![observed("1", ended(0))], now);
        for _ in 0..2 {
            let plan = node.plan(now);
            assert_eq!((plan.steps, plan.next_at), (vec![], None));
            let plan = node.plan(now);
            assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::Completed)));
            // Also after another program removed the container.
            node.observe(vec![], now);
        }
        node.observe(vec![observed("1", ended(0))], now);
        let models = std::mem::take(&mut node.models);
        assert_eq!(node.plan(now).steps, [], "the model is not checked yet after a restart");
        node.models = models;
        finish(&mut node, hash().as_str(), false);
        assert_eq!(
            health(&node.plan(now)),
            (WorkerState::Failed, Some(WorkerReason::WorkerFailed))
        );
        finish(&mut node, "an earlier spec", true);
        assert!(starts(&node.plan(now)), "a changed spec runs");
    }

    #[test]
    fn status_of_a_running_worker_is_its_health() {
        let (mut node, now) = (node(), Instant::now());
        node.observe(vec![observed("1", ContainerState::Running)], now);
        let mut report = |status: &str| {
            let info = serde_json::from_value(serde_json::json!({ "status": status })).unwrap();
            let owner = wanted_worker().owner;
            node.counts.observe(&owner, "uid", &name(), &info, None).unwrap();
            let plan = node.plan(now);
            assert_eq!(plan.steps, [], "its container is unchanged");
            health(&plan)
        };
        assert_eq!(report("running"), (WorkerState::Running, None));
        assert_eq!(report("failed"), (WorkerState::Failed, Some(WorkerReason::WorkerFailed)));
        assert_eq!(report("completed"), (WorkerState::Pending, Some(WorkerReason::Completed)));
        assert_eq!(report("running"), (WorkerState::Running, None));

        report("failed");
        node.docker = Ok(2);
        node.observe(vec![observed("1", ended(1))], now);
        let plan = node.plan(now);
        assert_eq!(health(&plan), (WorkerState::Failed, Some(WorkerReason::WorkerFailed)));
        assert!(plan.health[&name()].message.contains("exit code 1"));
    }

    #[test]
    fn container_with_other_spec_or_unusable_state_is_replaced() {
        let other_spec = |state| {
            let mut container = observed("1", state);
            container.identity.spec_hash = "other".into();
            container
        };
        for container in [
            other_spec(ContainerState::Running),
            observed("1", ContainerState::Unusable),
            observed("1", ended(0)),
        ] {
            let mut node = node();
            node.observe(vec![container], Instant::now());
            let plan = node.plan(Instant::now());
            assert!(starts(&plan));
            assert_eq!(removed(&plan), ["1"]);
        }
        let mut node = node();
        node.observe(vec![observed("1", ContainerState::Removing)], Instant::now());
        assert_eq!(node.plan(Instant::now()).steps, [], "another client removes it");
    }

    #[test]
    fn duplicate_is_removed_and_running_worker_kept() {
        let mut node = node();
        node.observe(
            vec![observed("old", ended(1)), observed("good", ContainerState::Running)],
            Instant::now(),
        );
        let plan = node.plan(Instant::now());
        assert!(!starts(&plan));
        assert_eq!(removed(&plan), ["old"]);
        assert_eq!(health(&plan).0, WorkerState::Running);
    }

    #[test]
    fn container_of_another_data_directory_is_adopted() {
        let mut node = node();
        let mut container = observed("1", ContainerState::Running);
        container.identity.instance = AgentInstance("earlier".into());
        node.observe(vec![container], Instant::now());
        assert_eq!(node.plan(Instant::now()).steps, []);
    }

    #[test]
    fn unwanted_container_of_other_directory_needs_complete_state() {
        let (mut node, now) = (node(), Instant::now());
        node.desired = Desired::default();
        node.is_complete = false;
        let mut earlier = observed("earlier", ContainerState::Running);
        earlier.identity.instance = AgentInstance("earlier".into());
        node.observe(vec![observed("this", ended(0)), earlier], now);
        assert_eq!(removed(&node.plan(now)), ["this"]);
        node.is_complete = true;
        assert_eq!(removed(&node.plan(now)), ["this", "earlier"]);
        node.keep.insert(wanted_worker().owner);
        assert_eq!(removed(&node.plan(now)), ["this"]);
        node.attempts().busy = true;
        assert_eq!(node.plan(now).steps, []);
    }

    #[test]
    fn crashing_worker_is_restarted_with_backoff_and_reports_why() {
        let (mut node, mut now) = (node(), Instant::now());
        node.attempts().set_target(&hash(), None);
        for failures in 1..=4 {
            let id = failures.to_string();
            let seq = node.docker.unwrap();
            node.attempts().done(
                StepOutcome::Started { id: id.clone() },
                Some((hash().to_string(), failures - 1)),
                seq,
                now,
                0,
            );
            node.observe(vec![observed(&id, ended(3))], now);
            let plan = node.plan(now);
            assert!(!starts(&plan), "the backoff has not passed");
            let state = if failures < 3 { WorkerState::Pending } else { WorkerState::Failed };
            assert_eq!(health(&plan), (state, Some(WorkerReason::CrashLoopBackOff)));
            let message = &plan.health[&name()].message;
            assert!(message.contains("exit code 3") && message.contains("last lines"), "{message}");
            let next_at = plan.next_at.unwrap();
            assert!(next_at >= now + Duration::from_millis(500) * 2u32.pow(failures - 1));
            now = next_at;
            let plan = node.plan(now);
            assert!(
                matches!(&plan.steps[..], [Step::Start { identity, .. }] if identity.restarts == failures)
            );
        }
        let seq = node.docker.unwrap();
        node.attempts().done(
            StepOutcome::Started { id: "5".into() },
            Some((hash().to_string(), 5)),
            seq,
            now,
            0,
        );
        node.observe(vec![observed("5", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert_eq!(health(&plan).0, WorkerState::Failed, "not settled yet");
        assert_eq!(plan.next_at, Some(now + SETTLED));
        assert_eq!(health(&node.plan(now + SETTLED)).0, WorkerState::Running);
    }

    #[test]
    fn worker_whose_port_is_in_use_waits_for_it_without_a_crash_loop() {
        let (mut node, mut now) = (node(), Instant::now());
        node.attempts().set_target(&hash(), None);
        // Another program took the port between the check and the start.
        let started = |id: &str| StepOutcome::Started { id: id.into() };
        let spec = || Some((hash().to_string(), 0));
        node.attempts().done(started("1"), spec(), 1, now, 0);
        node.observe(vec![observed("1", ended(1))], now);
        let in_use = Problem { reason: WorkerReason::PortInUse, message: "port 8080".into() };
        for _ in 0..9 {
            now = node.plan(now).next_at.unwrap_or(now);
            assert!(starts(&node.plan(now)), "the port is checked again");
            node.attempts().done(StepOutcome::Failed(in_use.clone()), None, 1, now, 0);
            node.observe(vec![], now);
            let plan = node.plan(now);
            assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::PortInUse)));
            assert_eq!(plan.next_at, Some(now + RECHECK_INTERVAL));
            let health = &plan.health[&name()];
            assert_eq!((&*health.message, health.restarts), ("port 8080", 0));
        }
        node.attempts().done(started("2"), spec(), 1, now, 0);
        node.observe(vec![observed("2", ContainerState::Running)], now);
        assert_eq!(health(&node.plan(now)), (WorkerState::Running, None));
    }

    #[test]
    fn changed_worker_does_not_wait_for_old_backoff() {
        let (mut node, now) = (node(), Instant::now());
        node.attempts().set_target(&neptune_wire::ContentHash::compute(&"old spec"), None);
        node.attempts().done(refused(), None, 1, now, 0);
        assert!(!starts(&node.plan(now)));
        node.attempts().set_target(&hash(), None);
        assert!(starts(&node.plan(now)));
    }

    #[test]
    fn absent_image_is_pulled_with_backoff_and_checked_often() {
        let (mut node, now) = (node(), Instant::now());
        let may_pull = |node: &Node, now| match node.plan(now).steps.first() {
            Some(Step::Start { may_pull, .. }) => Some(*may_pull),
            _ => None,
        };
        assert_eq!(may_pull(&node, now), Some(false), "the image may be on the node");
        node.attempts().done(StepOutcome::ImageAbsent, None, 1, now, 0);
        assert_eq!(may_pull(&node, now), Some(true));
        node.attempts().done(StepOutcome::PullFailed("no route".into()), None, 1, now, u64::MAX);
        assert_eq!(
            health(&node.plan(now)),
            (WorkerState::Failed, Some(WorkerReason::ImageMissing))
        );
        assert_eq!(
            may_pull(&node, now + Duration::from_secs(3)),
            Some(false),
            "a person may have loaded it"
        );
        node.attempts().done(StepOutcome::ImageAbsent, None, 1, now + Duration::from_secs(3), 0);
        assert_eq!(
            health(&node.plan(now)),
            (WorkerState::Failed, Some(WorkerReason::ImageMissing)),
            "still"
        );
        assert_eq!(may_pull(&node, now + Duration::from_secs(20)), Some(true));
    }

    #[test]
    fn reloading_worker_runs_while_version_is_placed_and_restarts_late() {
        let (mut node, now) = (node(), Instant::now());
        let place = Some(("/d".into(), [("1".to_owned(), local_file(MODEL))].into()));
        let placing = ReloadDecision { place, ..ReloadDecision::default() };
        node.reloads = [(name(), placing)].into();
        let places = |plan: &NodePlan| matches!(&plan.steps[..], [Step::Place { .. }]);
        assert!(places(&node.plan(now)), "before it starts");
        node.observe(vec![observed("1", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert!(places(&plan));
        assert_eq!(health(&plan), (WorkerState::Running, None));
        let next_at = Some(now + Duration::from_secs(60));
        let remark = "reloading".to_owned();
        let requested = ReloadDecision { next_at, note: remark, ..ReloadDecision::default() };
        node.reloads = [(name(), requested)].into();
        let plan = node.plan(now);
        assert_eq!((plan.steps.len(), plan.next_at), (0, next_at));
        assert_eq!(plan.health[&name()].message, "reloading");
        let late = ReloadDecision { restart: true, ..ReloadDecision::default() };
        node.reloads = [(name(), late)].into();
        let plan = node.plan(now);
        assert!(starts(&plan));
        assert_eq!(removed(&plan), ["1"]);
    }

    fn refused() -> StepOutcome {
        StepOutcome::Failed(Problem {
            reason: WorkerReason::ContainerRefused,
            message: String::new(),
        })
    }

    #[test]
    fn without_docker_nothing_is_planned_and_health_has_reason() {
        let mut node = node();
        node.docker = Err("no socket");
        let plan = node.plan(Instant::now());
        assert_eq!(plan.steps, []);
        assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::DockerUnavailable)));
        assert_eq!(plan.health[&name()].message, "no socket");
    }

    #[test]
    fn worker_waits_for_model_and_keeps_running_previous_version() {
        use WorkerReason::{ModelDigestMismatch, ModelDownloading, ModelNotReceived};
        let (mut node, now) = (node(), Instant::now());
        let problem = |reason| Some(Problem { reason, message: "the model's problem".into() });
        let availability = |usable: Option<&str>, problem, is_stuck| Availability {
            usable: usable.map(local_file),
            problem,
            is_stuck,
        };
        for (model, expected) in [
            (None, (WorkerState::Pending, Some(ModelNotReceived))),
            (
                Some(availability(None, problem(ModelDownloading), false)),
                (WorkerState::Pending, Some(ModelDownloading)),
            ),
            (
                Some(availability(None, problem(ModelDigestMismatch), true)),
                (WorkerState::Failed, Some(ModelDigestMismatch)),
            ),
        ] {
            node.models = model.into_iter().map(|model| (model_key(), model)).collect();
            node.containers.clear();
            let plan = node.plan(now);
            assert_eq!((health(&plan), plan.steps.len()), (expected, 0));

            node.containers = vec![observed("1", ContainerState::Running)];
            let plan = node.plan(now);
            let is_stuck = expected.0 == WorkerState::Failed;
            let reason = is_stuck.then_some(WorkerReason::WorkerDegraded);
            assert_eq!(
                (health(&plan), plan.steps.len()),
                ((WorkerState::Running, reason), 0),
                "the running container is kept"
            );

            node.containers[0].identity.uid = "of a deleted object".into();
            assert_eq!(removed(&node.plan(now)), ["1"]);
        }
        node.models =
            [(model_key(), availability(Some(MODEL), problem(ModelDigestMismatch), true))].into();
        node.containers.clear();
        assert!(starts(&node.plan(now)), "on the previous version");
        node.observe(vec![observed("1", ContainerState::Running)], now);
        let plan = node.plan(now);
        assert_eq!(
            (health(&plan), plan.steps.len()),
            ((WorkerState::Running, Some(WorkerReason::WorkerDegraded)), 0)
        );
        assert!(plan.health[&name()].message.contains("the model's problem"));
        let waiting = availability(Some(MODEL), problem(WorkerReason::DownloadWindow), false);
        node.models = [(model_key(), waiting)].into();
        let plan = node.plan(now);
        assert_eq!((health(&plan), plan.steps.len()), ((WorkerState::Running, None), 0));
        assert!(plan.health[&name()].message.contains("the model's problem"));
    }

    #[test]
    fn gateway_starts_with_its_files_and_needs_no_model() {
        let (mut node, now) = (node(), Instant::now());
        node.desired.workers.insert(name(), wanted_gateway());
        node.models.clear();
        let plan = node.plan(now);
        assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::Starting)));
        assert_eq!(plan.steps, []);

        node.gateways.insert(name(), Err("cannot write: disk full".into()));
        let plan = node.plan(now);
        assert_eq!(health(&plan), (WorkerState::Pending, Some(WorkerReason::ContainerRefused)));
        assert!(plan.health[&name()].message.contains("disk full"));

        node.gateways.insert(name(), Ok(None));
        let plan = node.plan(now);
        let [Step::Start { spec, identity, .. }] = &plan.steps[..] else { unreachable!() };
        assert_eq!((&spec.model, spec.directories.len()), (&None, 3));

        let mut running = observed("1", ContainerState::Running);
        running.identity.spec_hash.clone_from(&identity.spec_hash);
        node.observe(vec![running], now);
        node.gateways.clear();
        let plan = node.plan(now);
        assert_eq!((health(&plan), plan.steps.len()), ((WorkerState::Running, None), 0));
    }

    #[test]
    fn worker_waits_for_dataset_and_keeps_running_without_it() {
        use WorkerReason::{DatasetNotReceived, DatasetUnavailable};
        let (mut node, now) = (node(), Instant::now());
        let key: ObjectKey = "default/datasets/d".parse().unwrap();
        node.desired.workers.get_mut(&name()).unwrap().dataset = Some(key.clone());
        let plan = node.plan(now);
        assert_eq!(health(&plan), (WorkerState::Pending, Some(DatasetNotReceived)));
        assert!(plan.health[&name()].message.contains("create the Dataset"));

        let problem = Problem { reason: DatasetUnavailable, message: "missing".into() };
        let missing =
            Availability { problem: Some(problem), is_stuck: true, ..Availability::default() };
        node.datasets.insert(key.clone(), missing.clone());
        assert_eq!(health(&node.plan(now)), (WorkerState::Failed, Some(DatasetUnavailable)));

        let present =
            |path| Availability { usable: Some(local_file(path)), ..Availability::default() };
        node.datasets.insert(key.clone(), present("/code/data/a.csv"));
        let plan = node.plan(now);
        let [Step::Start { spec, identity, .. }] = &plan.steps[..] else { unreachable!() };
        assert_eq!(spec.dataset.as_ref().unwrap().target, "/datasets/d/a.csv");

        let mut running = observed("1", ContainerState::Running);
        running.identity.spec_hash.clone_from(&identity.spec_hash);
        node.observe(vec![running], now);
        assert_eq!(node.plan(now).steps, [], "converged");
        node.datasets.insert(key.clone(), missing);
        let plan = node.plan(now);
        let degraded = (WorkerState::Running, Some(WorkerReason::WorkerDegraded));
        assert_eq!((health(&plan), plan.steps.len()), (degraded, 0));
        assert!(plan.health[&name()].message.contains("missing"));
        node.datasets.insert(key, present("/code/data/b.csv"));
        assert_eq!(removed(&node.plan(now)), ["1"], "other data is another container");
    }
}
