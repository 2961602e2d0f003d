//! Decides how one content is fetched: which peers to ask, from which one to download, which one to
//! wait for, and when to use the origin. Pure: the caller passes times and random numbers.
//!
//! ```text
//! Ask -> a holder              -> Download -> Done
//!     -> a member that fetches -> Poll     -> Download
//!     -> another owner         -> Request  -> Poll
//!     -> this node is the owner, or no peer is left -> UseOrigin
//! ```

mod action;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use neptune_transfer::Digest;
use neptune_wire::NodeName;

pub use self::action::{
    Availability, DownloadFailure, FetchAction, FetchTimes, OriginReason, PollReply,
};
use crate::peers::{quarantine::Quarantine, rendezvous::ranked};

/// Owners that are tried before the origin.
const MAX_OWNERS: usize = 3;
/// Failures of a peer before it is not used again for this content.
const MAX_FAILURES: u32 = 3;
/// Bytes after which earlier failures of a peer do not count.
const GOOD_TRANSFER: u64 = 1024 * 1024;
/// Times in a row that an owner may be unreachable.
const MAX_MISSED_POLLS: u32 = 3;
/// The longest pause while all holders are busy, as a multiple of the first one.
const MAX_PAUSE_FACTOR: u32 = 8;
/// How often members that are connected and do not answer are asked before they are ignored.
const MAX_SILENT_ROUNDS: u32 = 3;

/// The state of one fetch, between two actions.
#[derive(Debug)]
pub struct FetchState {
    digest: Digest,
    me: NodeName,
    times: FetchTimes,
    phase: Phase,
    /// Failures of each peer as a source. [`MAX_FAILURES`] exclude it.
    failures: BTreeMap<NodeName, u32>,
    /// Members that are not waited for any more.
    failed_owners: BTreeSet<NodeName>,
    /// Rounds in which a member did not answer that may be the owner.
    silent_rounds: u32,
    /// Since when all holders are busy, and the next pause.
    busy: Option<(Instant, Duration)>,
    is_single_source: bool,
}

#[derive(Debug)]
enum Phase {
    Ask,
    /// Ask at this time.
    Pause(Instant),
    Request(NodeName),
    Wait(OwnerProgress),
    /// Download from the last one; the others have the content as well.
    Download(Vec<NodeName>),
    UseOrigin(OriginReason),
    Done(NodeName),
}

#[derive(Debug)]
struct OwnerProgress {
    owner: NodeName,
    received: Option<u64>,
    changed: Instant,
    missed: u32,
    poll_at: Instant,
}

impl FetchState {
    /// Starts a fetch on node `me`.
    pub fn new(digest: Digest, me: NodeName, times: FetchTimes) -> Self {
        Self {
            digest,
            me,
            times,
            phase: Phase::Ask,
            failures: BTreeMap::new(),
            failed_owners: BTreeSet::new(),
            silent_rounds: 0,
            busy: None,
            is_single_source: false,
        }
    }

    /// Returns the next action. `members` are those of the roster now.
    pub fn next<'a>(
        &mut self,
        members: impl IntoIterator<Item = &'a NodeName>,
        quarantine: &Quarantine,
        now: Instant,
    ) -> FetchAction {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Ask) {
            Phase::Pause(until) if now < until => {
                self.phase = Phase::Pause(until);
                return FetchAction::Wait(until);
            }
            Phase::Pause(_) | Phase::Ask => Phase::Ask,
            Phase::Download(mut holders) => {
                // Another fetch may have excluded a holder meanwhile.
                holders.retain(|node| self.is_source(node) && !quarantine.contains(node, now));
                if holders.is_empty() { Phase::Ask } else { Phase::Download(holders) }
            }
            other => other,
        };
        if matches!(self.phase, Phase::Ask) {
            let others = members.into_iter().filter(|node| **node != self.me);
            let usable = |node: &NodeName| self.is_source(node) && !quarantine.contains(node, now);
            let peers: Vec<_> = others.filter(|node| usable(node)).cloned().collect();
            if !peers.is_empty() {
                return FetchAction::Ask(peers);
            }
            self.phase = Phase::UseOrigin(OriginReason::NoPeers);
        }
        match &self.phase {
            Phase::Ask | Phase::Pause(_) => unreachable!("an empty question uses the origin"),
            Phase::Request(owner) => FetchAction::Request(owner.clone()),
            Phase::Wait(wait) if now < wait.poll_at => FetchAction::Wait(wait.poll_at),
            Phase::Wait(wait) => FetchAction::Poll(wait.owner.clone()),
            Phase::Download(holders) => FetchAction::Download {
                from: holders.last().expect("there is a holder").clone(),
                is_single_source: self.is_single_source,
            },
            Phase::UseOrigin(reason) => FetchAction::UseOrigin(*reason),
            Phase::Done(node) => FetchAction::Done(node.clone()),
        }
    }

    /// Returns how long to wait for the answers to [`FetchAction::Ask`]: doubled after each round in
    /// which a possible owner was too slow.
    pub fn answer_timeout(&self) -> Duration {
        self.times.answer * 2_u32.pow(self.silent_rounds)
    }

    /// Takes the answers to [`FetchAction::Ask`]. `silent` are the peers that are reachable and did
    /// not answer in time. Others that did not answer are not reachable.
    pub fn on_answers(
        &mut self,
        answers: &BTreeMap<NodeName, Availability>,
        silent: &BTreeSet<NodeName>,
        random: u64,
        now: Instant,
    ) {
        let with = |wanted: fn(&Availability) -> bool| {
            answers.iter().filter(move |(_, it)| wanted(it)).map(|(node, _)| node)
        };
        let is_holder = |it: &Availability| *it == Availability::Held;
        let mut holders: Vec<_> =
            with(is_holder).filter(|node| self.is_source(node)).cloned().collect();
        if !holders.is_empty() {
            // The order of the others matters little: they are used after failures.
            let first = random % holders.len() as u64;
            holders.rotate_left(usize::try_from(first).expect("it is below a length"));
            self.phase = Phase::Download(holders);
            return;
        }
        self.busy = None;
        if self.failed_owners.len() >= MAX_OWNERS {
            self.phase = Phase::UseOrigin(OriginReason::OwnersFailed);
            return;
        }
        // One that fetches already goes before the owner: it began when the owner did not answer.
        let fetching = with(|it| matches!(it, Availability::Fetching(_)));
        let fetching =
            ranked(&self.digest, fetching.filter(|it| !self.failed_owners.contains(*it)));
        if let Some(node) = fetching.first() {
            let node = (*node).clone();
            self.wait_for(node, now);
            return;
        }
        let wanted = with(|it| *it == Availability::Wanted);
        let candidates = wanted.filter(|it| !self.failed_owners.contains(*it));
        let owner = ranked(&self.digest, candidates.chain([&self.me]))[0].clone();
        // On a busy machine the owner may answer late. Two owners cost more than another question.
        let silent = silent.iter().filter(|it| !self.failed_owners.contains(*it));
        let is_first = ranked(&self.digest, silent.chain([&owner]))[0] == &owner;
        if !is_first && self.silent_rounds < MAX_SILENT_ROUNDS {
            self.silent_rounds += 1;
            self.phase = Phase::Pause(now + self.times.busy_pause);
        } else if owner == self.me {
            self.phase = Phase::UseOrigin(OriginReason::IsOwner);
        } else {
            self.phase = Phase::Request(owner);
        }
    }

    /// Takes the answer to [`FetchAction::Request`]: whether the peer fetches the content.
    pub fn on_requested(&mut self, is_accepted: bool, now: Instant) {
        let Phase::Request(owner) = &self.phase else { return };
        let owner = owner.clone();
        if is_accepted {
            self.wait_for(owner, now);
        } else {
            self.fail_owner(owner);
        }
    }

    /// Takes the reply to [`FetchAction::Poll`].
    pub fn on_progress(&mut self, reply: PollReply, now: Instant) {
        let failures = &self.failures;
        let Phase::Wait(wait) = &mut self.phase else { return };
        let is_source = failures.get(&wait.owner).is_none_or(|count| *count < MAX_FAILURES);
        wait.poll_at = now + self.times.poll;
        wait.missed = if reply == PollReply::Unreachable { wait.missed + 1 } else { 0 };
        let owner = wait.owner.clone();
        match reply {
            PollReply::Answered(Availability::Held) if is_source => {
                self.phase = Phase::Download(vec![owner]);
                return;
            }
            PollReply::Answered(Availability::Held | Availability::Absent) => {
                return self.fail_owner(owner);
            }
            PollReply::Answered(Availability::Fetching(received))
                if wait.received.is_none_or(|it| received > it) =>
            {
                (wait.received, wait.changed) = (Some(received), now);
            }
            _ => {}
        }
        let is_stuck = now.saturating_duration_since(wait.changed) >= self.times.no_progress;
        if is_stuck || wait.missed >= MAX_MISSED_POLLS {
            self.fail_owner(owner);
        }
    }

    /// Takes the result of [`FetchAction::Download`].
    pub fn on_download(&mut self, result: Result<(), DownloadFailure>, now: Instant) {
        let Phase::Download(holders) = &mut self.phase else { return };
        let from = holders.pop().expect("there is a holder");
        let left = std::mem::take(holders);
        let Err(failure) = result else {
            self.phase = Phase::Done(from);
            return;
        };
        let count = self.failures.entry(from.clone()).or_default();
        match failure {
            DownloadFailure::Busy => {}
            DownloadFailure::Interrupted(received) if received >= GOOD_TRANSFER => *count = 1,
            DownloadFailure::Interrupted(_) => *count += 1,
            DownloadFailure::WrongMixture if !self.is_single_source => self.is_single_source = true,
            DownloadFailure::Unusable
            | DownloadFailure::TooSlow
            | DownloadFailure::WrongContent
            | DownloadFailure::WrongMixture => *count = MAX_FAILURES,
        }
        if failure != DownloadFailure::Busy {
            self.busy = None;
        }
        if failure == DownloadFailure::WrongMixture && self.is_source(&from) {
            // Alone, this peer's copy shows whether it is the wrong one.
            self.phase = Phase::Download(vec![from]);
        } else if !left.is_empty() {
            self.phase = Phase::Download(left);
        } else {
            self.pause(failure == DownloadFailure::Busy, now);
        }
    }

    /// Waits before the peers are asked again: the first time shortly, then longer while all
    /// holders are busy.
    fn pause(&mut self, is_busy: bool, now: Instant) {
        if !is_busy {
            self.phase = Phase::Pause(now + self.times.busy_pause);
            return;
        }
        let (since, pause) = self.busy.unwrap_or((now, self.times.busy_pause));
        if now.saturating_duration_since(since) >= self.times.busy {
            self.phase = Phase::UseOrigin(OriginReason::PeersBusy);
            return;
        }
        self.busy = Some((since, (pause * 2).min(self.times.busy_pause * MAX_PAUSE_FACTOR)));
        self.phase = Phase::Pause(now + pause);
    }

    fn wait_for(&mut self, owner: NodeName, now: Instant) {
        let poll_at = now + self.times.poll;
        let wait = OwnerProgress { owner, received: None, changed: now, missed: 0, poll_at };
        self.phase = Phase::Wait(wait);
    }

    fn fail_owner(&mut self, owner: NodeName) {
        self.failed_owners.insert(owner);
        self.phase = Phase::Ask;
    }

    fn is_source(&self, node: &NodeName) -> bool {
        self.failures.get(node).is_none_or(|count| *count < MAX_FAILURES)
    }
}

#[cfg(test)]
mod tests;
