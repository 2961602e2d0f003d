//! One step of a rollout: moves its frontier, grants the revision to nodes, pauses and completes
//! it.
//!
//! The frontier is in the status before a node behind it gets a grant, so another controller
//! continues with the same nodes. Within the frontier, grants are limited by the same number again:
//! nodes that return all at once get the revision one after the other.
//!
//! A Model that two rollouts share reaches a node after both granted it. Until then the node costs
//! neither of them anything: each takes more nodes until some are in both, instead of waiting for the
//! other.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use neptune_api::{RolloutState, RolloutStatus};

use super::{
    node::{Failure, Grant, GrantCause, Has, RolloutNode},
    policy::Policy,
    rank::Rank,
    summary::{Failures, summarize},
};
/// The result of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The next status of the rollout.
    pub status: RolloutStatus,
    /// New grants, by the position of the node. They apply once the given status is stored.
    pub grants: Vec<(usize, Grant)>,
    /// When the next step is due although no node reports anything.
    pub due_at: Option<Timestamp>,
}

/// The time of a step, by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The time for what is remembered. It never jumps.
    pub now: Timestamp,
    /// The time for what is stored.
    pub wall: Timestamp,
    /// Whether it is known which nodes are online. A controller that has just started may not know
    /// yet which nodes a wave took down.
    pub is_settled: bool,
}

/// How far a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It has no grant and another revision, or nothing.
    Waiting,
    /// It had the revision when this controller saw it first, and is offline.
    Away,
    /// It has a grant, and waits for the rollout of another object.
    Delayed,
    /// It has a grant, and is not ready yet.
    InFlight,
    Done,
    Failed(Failure),
}

/// Moves the rollout of `revision` from the stored status `previous`. `is_first`: no node had the
/// object before.
pub fn step(
    policy: &Policy,
    (revision, is_first): (&str, bool),
    previous: Option<&RolloutStatus>,
    nodes: &[RolloutNode],
    moment: Moment,
) -> Step {
    let Some(known) = previous.filter(|status| status.revision == revision) else {
        return begin(policy, (revision, is_first && previous.is_none()), nodes, moment);
    };
    let mut wave = Wave::new(policy, known, nodes, moment.now);
    let mut status = known.clone();
    pause(policy, &wave, &mut status, moment.wall);
    let may_grant = status.state != RolloutState::Paused && !policy.is_paused;
    let may_move = may_grant && moment.is_settled;
    wave.grant((may_grant, may_move), status.state == RolloutState::Complete);
    if may_move && status.state == RolloutState::Progressing {
        if wave.is_complete() {
            status.state = RolloutState::Complete;
        } else if let Some(frontier) = wave.advanced() {
            status.frontier = Some(frontier.to_string());
        }
    }
    wave.count(&mut status);
    summarize(&mut status, policy, &wave.failures());
    let has_moved = status.frontier != known.frontier || status.state != known.state;
    let due_at = wave.due_at(has_moved || !moment.is_settled, &status);
    Step { status, grants: wave.grants, due_at }
}

/// The first status of a revision. Nodes that had nothing before need no waves.
fn begin(
    policy: &Policy,
    (revision, is_first): (&str, bool),
    nodes: &[RolloutNode],
    moment: Moment,
) -> Step {
    let mut status = RolloutStatus {
        revision: revision.to_owned(),
        start_time: Some(seconds(moment.wall)),
        ..RolloutStatus::default()
    };
    if is_first {
        status.state = RolloutState::Complete;
        status.frontier = Some(Rank::LAST.to_string());
    } else if policy.is_paused {
        status.state = RolloutState::Paused;
    }
    let wave = Wave::new(policy, &status, nodes, moment.now);
    wave.count(&mut status);
    summarize(&mut status, policy, &wave.failures());
    Step { status, grants: Vec::new(), due_at: Some(moment.now) }
}

/// Pauses a rollout that has too many failures, and continues one that a person resumed. A rollout
/// that is complete does not pause.
fn pause(policy: &Policy, wave: &Wave, status: &mut RolloutStatus, wall: Timestamp) {
    if status.state == RolloutState::Complete {
        return;
    }
    if let Some(paused) = &status.paused_time {
        if policy.resumed_at.is_none_or(|resumed| resumed < paused.0) {
            status.state = RolloutState::Paused;
            return;
        }
        status.forgiven = number(wave.failed);
        status.paused_time = None;
    }
    let forgiven = usize::try_from(status.forgiven).unwrap_or_default();
    let has_failed =
        wave.failed.saturating_sub(forgiven) > policy.pause_on_failure.of_nodes(wave.released);
    status.paused_time = has_failed.then(|| seconds(wall));
    status.state = if has_failed || policy.is_paused {
        RolloutState::Paused
    } else {
        RolloutState::Progressing
    };
}

/// The nodes during a step.
struct Wave<'a> {
    policy: &'a Policy,
    nodes: &'a [RolloutNode<'a>],
    outcomes: Vec<Outcome>,
    frontier: Option<Rank>,
    now: Timestamp,
    /// How many nodes the rollout may take down at the same time.
    limit: usize,
    released: usize,
    done: usize,
    failed: usize,
    /// The nodes behind the frontier that the rollout took down or is about to.
    in_flight: usize,
    /// Those of them that are canaries.
    canaries_in_flight: usize,
    grants: Vec<(usize, Grant)>,
    /// Whether nodes behind the frontier wait for others.
    has_waiting: bool,
    /// Nodes with a grant that wait for the rollout of another object.
    delayed: usize,
}

impl<'a> Wave<'a> {
    fn new(
        policy: &'a Policy,
        status: &RolloutStatus,
        nodes: &'a [RolloutNode<'a>],
        now: Timestamp,
    ) -> Self {
        let outcomes: Vec<_> = nodes.iter().map(|node| outcome(policy, node, now)).collect();
        let mut wave = Self {
            policy,
            nodes,
            outcomes,
            frontier: status.frontier.as_ref().and_then(|text| text.parse().ok()),
            now,
            limit: policy.limit(nodes.len()),
            released: 0,
            done: 0,
            failed: 0,
            in_flight: 0,
            canaries_in_flight: 0,
            grants: Vec::new(),
            has_waiting: false,
            delayed: 0,
        };
        for (node, outcome) in nodes.iter().zip(&wave.outcomes) {
            wave.released += usize::from(*outcome != Outcome::Waiting);
            wave.done += usize::from(*outcome == Outcome::Done);
            wave.failed += usize::from(matches!(outcome, Outcome::Failed(_)));
            wave.delayed += usize::from(*outcome == Outcome::Delayed && node.is_online);
            let is_join = node.grant.is_some_and(|grant| grant.cause == GrantCause::Join);
            let is_charged = *outcome == Outcome::InFlight && !is_join;
            if is_charged && wave.frontier.is_some_and(|frontier| node.rank <= frontier) {
                wave.in_flight += 1;
                wave.canaries_in_flight += usize::from(node.rank.is_canary());
            }
        }
        wave
    }

    /// Whether one more node of this rank may be taken down.
    fn has_budget(&self, rank: Rank) -> bool {
        let budget = if rank.is_canary() {
            self.limit
        } else if self.canaries_in_flight > 0 {
            0
        } else {
            self.limit.min(self.done.max(1))
        };
        self.in_flight < budget
    }

    fn charge(&mut self, rank: Rank) {
        self.in_flight += 1;
        self.canaries_in_flight += usize::from(rank.is_canary());
    }

    /// Grants the revision to the nodes behind the stored frontier, and to those that join. What a
    /// node has already is granted in any case. `may_join`: nodes without the object may get it;
    /// `may_move`: other nodes may get the revision.
    fn grant(&mut self, (may_join, may_move): (bool, bool), is_complete: bool) {
        let mut waiting = Vec::new();
        let mut unready = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            if node.grant.is_some() {
                continue;
            }
            match node.has {
                Has::New => self.grants.push((at, self.grant_by(GrantCause::Known))),
                Has::Nothing if may_join && node.is_online => {
                    self.grants.push((at, self.grant_by(GrantCause::Join)));
                }
                Has::Old if may_move && node.is_online => {
                    let is_behind = self.frontier.is_some_and(|frontier| node.rank <= frontier);
                    match node.is_ready {
                        true if is_behind => waiting.push(at),
                        true => {}
                        false => unready.push(at),
                    }
                }
                Has::Nothing | Has::Old => {}
            }
        }
        waiting.sort_unstable_by_key(|at| self.nodes[*at].rank);
        for at in waiting {
            let rank = self.nodes[at].rank;
            if self.has_budget(rank) {
                self.grants.push((at, self.grant_by(GrantCause::Wave)));
                self.charge(rank);
            } else {
                self.has_waiting = true;
            }
        }
        if self.frontier == Some(Rank::LAST) && !unready.is_empty() {
            if is_complete || self.in_flight == 0 && !self.has_waiting {
                let grant = self.grant_by(GrantCause::Wave);
                self.grants.extend(unready.into_iter().map(|at| (at, grant)));
            } else {
                self.has_waiting = true;
            }
        }
    }

    fn grant_by(&self, cause: GrantCause) -> Grant {
        Grant { since: self.now, cause }
    }

    /// Whether nothing is left to do for the nodes that are online.
    fn is_complete(&self) -> bool {
        self.frontier == Some(Rank::LAST)
            && self.in_flight == 0
            && self.grants.is_empty()
            && !self.has_waiting
            && self.delayed == 0
    }

    /// The next frontier, if it moves. A node that is offline, that is not ready, or that has the
    /// revision already costs nothing.
    fn advanced(&mut self) -> Option<Rank> {
        if self.has_waiting || self.frontier == Some(Rank::LAST) {
            return None;
        }
        let is_ahead = |node: &&RolloutNode| self.frontier.is_none_or(|at| node.rank > at);
        let mut ahead: Vec<_> = self.nodes.iter().filter(is_ahead).collect();
        ahead.sort_unstable_by_key(|node| node.rank);
        let mut last = None;
        for node in ahead {
            let is_free =
                node.has != Has::Old || node.grant.is_some() || !node.is_online || !node.is_ready;
            if !is_free {
                if !self.has_budget(node.rank) {
                    return last;
                }
                self.charge(node.rank);
            }
            last = Some(node.rank);
        }
        Some(Rank::LAST)
    }

    fn count(&self, status: &mut RolloutStatus) {
        let updated = self.nodes.iter().filter(|node| node.has == Has::New).count();
        status.total = number(self.nodes.len());
        status.updated = number(updated);
        status.ready = number(self.done);
        status.failed = number(self.failed);
    }

    /// The failed nodes: how many of how many, and the first of them by name.
    fn failures(&self) -> Failures<'a> {
        let failed = self.nodes.iter().zip(&self.outcomes).filter_map(|(node, outcome)| {
            let Outcome::Failed(failure) = outcome else { return None };
            Some((node.name, *failure))
        });
        let first = failed.min_by_key(|(name, _)| *name);
        Failures { released: self.released, first, delayed: self.delayed }
    }

    /// When a node may become ready or fail by the time alone, or at once after a change.
    fn due_at(&self, has_moved: bool, status: &RolloutStatus) -> Option<Timestamp> {
        if has_moved || !self.grants.is_empty() {
            return Some(self.now);
        }
        let times = self.nodes.iter().zip(&self.outcomes).flat_map(|(node, outcome)| {
            let is_in_flight = *outcome == Outcome::InFlight;
            let ready = node.ready_since.map(|since| since + self.policy.min_ready);
            let deadline = node.grant.filter(|_| !node.is_deferred);
            let deadline = deadline.map(|grant| grant.since + self.policy.deadline);
            [ready, deadline].into_iter().flatten().filter(move |_| is_in_flight)
        });
        let is_over = status.state == RolloutState::Complete && !self.has_waiting;
        times.filter(|at| !is_over && *at > self.now).min()
    }
}

/// How far a node is, by what it has, what it reports and the time.
fn outcome(policy: &Policy, node: &RolloutNode, now: Timestamp) -> Outcome {
    if node.has == Has::New {
        if let Some(reason) = node.failure {
            return Outcome::Failed(Failure::Reported(reason));
        }
        if node.ready_since.is_some_and(|since| since + policy.min_ready <= now) {
            return Outcome::Done;
        }
    }
    let Some(grant) = node.grant else {
        return match node.has {
            Has::New if node.is_online => Outcome::InFlight,
            Has::New => Outcome::Away,
            Has::Nothing | Has::Old => Outcome::Waiting,
        };
    };
    if grant.cause == GrantCause::Known && !node.is_online {
        Outcome::Away
    } else if node.is_delayed {
        Outcome::Delayed
    } else if !node.is_deferred && grant.since + policy.deadline <= now {
        Outcome::Failed(Failure::Late)
    } else {
        Outcome::InFlight
    }
}

/// A time as the API server stores it.
fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a valid time")
    }

    fn moment(second: i64) -> Moment {
        Moment { now: at(second), wall: at(second), is_settled: true }
    }

    fn node(name: &str) -> RolloutNode<'_> {
        RolloutNode {
            name,
            rank: Rank::new(false, "uid", "r", name),
            has: Has::Old,
            is_online: true,
            is_ready: true,
            ready_since: None,
            failure: None,
            is_deferred: false,
            is_delayed: false,
            grant: None,
        }
    }

    fn all_released() -> RolloutStatus {
        RolloutStatus {
            revision: "r".to_owned(),
            frontier: Some(Rank::LAST.to_string()),
            ..RolloutStatus::default()
        }
    }

    fn defaults() -> Policy {
        Policy::new(&neptune_api::Rollout::default(), None)
    }

    fn next(stored: &RolloutStatus, nodes: &[RolloutNode], moment: Moment) -> Step {
        step(&defaults(), ("r", false), Some(stored), nodes, moment)
    }

    #[test]
    fn node_that_another_rollout_delays_costs_nothing_and_does_not_complete_it() {
        let granted = Some(Grant { since: at(0), cause: GrantCause::Wave });
        let delayed = |name| RolloutNode { grant: granted, is_delayed: true, ..node(name) };
        let mut stored = all_released();
        let nodes = [delayed("a"), node("b"), node("c")];
        let taken = next(&stored, &nodes, moment(10_000));
        assert_eq!((taken.grants.len(), taken.status.failed), (1, 0), "one more");
        let message =
            "0 of 3 nodes are updated, 0 are ready; 1 wait for another rollout of their Model";
        assert_eq!(taken.status.message.as_deref(), Some(message));
        let nodes = [delayed("a"), delayed("b"), delayed("c")];
        let waits = next(&stored, &nodes, moment(10_000));
        assert_eq!((waits.status.state, waits.due_at), (RolloutState::Progressing, None));
        let away = nodes.map(|node| RolloutNode { is_online: false, ..node });
        let away = next(&stored, &away, moment(10_000));
        assert_eq!((away.status.state, away.status.failed), (RolloutState::Complete, 0));
        stored.frontier = None;
        let ahead = next(&stored, &[delayed("a"), node("b")], moment(0)).status.frontier;
        assert!(ahead.is_some(), "the delayed node is no reason to wait");
    }

    #[test]
    fn time_in_which_a_node_may_not_download_is_no_failure() {
        let granted = Some(Grant { since: at(0), cause: GrantCause::Wave });
        let waits = RolloutNode { grant: granted, is_ready: false, is_deferred: true, ..node("a") };
        let late = next(&all_released(), std::slice::from_ref(&waits), moment(10_000));
        assert_eq!((late.status.state, late.status.failed), (RolloutState::Progressing, 0));
        assert_eq!(late.due_at, None, "the node reports the end of the wait");
        let downloads = RolloutNode { is_deferred: false, ..waits };
        let soon = next(&all_released(), std::slice::from_ref(&downloads), moment(10));
        assert_eq!((soon.status.failed, soon.due_at), (0, Some(at(600))));
        let late = next(&all_released(), &[downloads], moment(600));
        assert_eq!((late.status.state, late.status.failed), (RolloutState::Paused, 1));
        assert!(late.status.message.is_some_and(|it| it.contains("(a: RolloutDeadline)")));
    }

    #[test]
    fn node_that_is_not_ready_gets_the_revision_after_the_others() {
        let granted = Some(Grant { since: at(99), cause: GrantCause::Wave });
        let taken = |ready_since| {
            let first = RolloutNode { has: Has::New, ready_since, grant: granted, ..node("a") };
            let unready = RolloutNode { is_ready: false, ..node("b") };
            let grants = next(&all_released(), &[first, unready], moment(100)).grants;
            grants.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
        };
        assert_eq!(taken(None), [0; 0], "the first node is in flight");
        assert_eq!(taken(Some(at(100) - defaults().min_ready)), [1]);
    }

    #[test]
    fn rollout_waits_for_a_node_to_stay_ready_until_it_is_complete() {
        let granted = Some(Grant { since: at(99), cause: GrantCause::Wave });
        let since = Some(at(99));
        let ready = RolloutNode { has: Has::New, ready_since: since, grant: granted, ..node("a") };
        let due_at = |state| {
            let stored = RolloutStatus { state, ..all_released() };
            next(&stored, std::slice::from_ref(&ready), moment(100)).due_at
        };
        assert_eq!(due_at(RolloutState::Progressing), Some(at(99) + defaults().min_ready));
        assert_eq!(due_at(RolloutState::Complete), None);
    }

    #[test]
    fn controller_that_has_just_started_grants_only_what_nodes_have_or_lack() {
        let joins = RolloutNode { has: Has::Nothing, is_ready: false, ..node("a") };
        let knows = RolloutNode { has: Has::New, ..node("b") };
        let nodes = [joins, knows, node("c")];
        let starting = Moment { is_settled: false, ..moment(1) };
        let causes = |step: &Step| -> Vec<_> {
            step.grants.iter().map(|(at, grant)| (*at, grant.cause)).collect()
        };
        let first = next(&all_released(), &nodes, starting);
        assert_eq!(causes(&first), [(0, GrantCause::Join), (1, GrantCause::Known)]);
        let settled = next(&all_released(), &nodes[2..], moment(1));
        assert_eq!(causes(&settled), [(0, GrantCause::Wave)]);
    }

    #[test]
    fn node_that_is_offline_since_the_start_of_the_controller_blocks_nothing() {
        let knows = Some(Grant { since: at(0), cause: GrantCause::Known });
        let away = RolloutNode { has: Has::New, is_online: false, grant: knows, ..node("a") };
        let done =
            RolloutNode { ready_since: Some(at(0)), has: Has::New, grant: knows, ..node("b") };
        let step = next(&all_released(), &[away, done], moment(30));
        assert_eq!((step.status.state, step.status.ready), (RolloutState::Complete, 1));
    }

    #[test]
    fn rollout_that_a_person_paused_moves_no_frontier() {
        let policy = Policy { is_paused: true, ..defaults() };
        let nodes = [node("a"), node("b")];
        let first = step(&policy, ("r", false), None, &nodes, moment(0));
        assert_eq!((first.status.state, &first.status.frontier), (RolloutState::Paused, &None));
        let later = step(&policy, ("r", false), Some(&first.status), &nodes, moment(9));
        assert_eq!((&later.status, later.grants.len()), (&first.status, 0));
        let resumed = next(&first.status, &nodes, moment(10));
        assert_eq!(resumed.status.state, RolloutState::Progressing);
        assert!(resumed.status.frontier.is_some() && resumed.grants.is_empty());
    }
}
