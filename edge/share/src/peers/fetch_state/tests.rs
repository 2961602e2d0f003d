//! Tests of the decisions of a fetch.

#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::panic)]

use proptest::prelude::*;

use super::*;

fn node(number: usize) -> NodeName {
    format!("edge{number}").parse().unwrap()
}

fn nodes(count: usize) -> Vec<NodeName> {
    (0..count).map(node).collect()
}

struct Fixture {
    state: FetchState,
    members: Vec<NodeName>,
    quarantine: Quarantine,
    now: Instant,
}

impl Fixture {
    /// A fetch of a member of this rank.
    fn of_rank(rank: usize, count: usize) -> (Self, Vec<NodeName>) {
        let digest = Digest::of_bytes(b"content");
        let members = nodes(count);
        let order: Vec<_> = ranked(&digest, &members).into_iter().cloned().collect();
        let state = FetchState::new(digest, order[rank].clone(), FetchTimes::default());
        let fixture =
            Self { state, members, quarantine: Quarantine::default(), now: Instant::now() };
        (fixture, order)
    }

    fn next(&mut self) -> FetchAction {
        self.state.next(&self.members, &self.quarantine, self.now)
    }

    fn answer(&mut self, answers: &[(&NodeName, Availability)]) -> FetchAction {
        assert!(matches!(self.next(), FetchAction::Ask(_)));
        let answers = answers.iter().map(|(node, it)| ((*node).clone(), *it)).collect();
        self.state.on_answers(&answers, &BTreeSet::new(), 0, self.now);
        self.next()
    }

    fn download(&mut self, result: Result<(), DownloadFailure>) -> FetchAction {
        self.state.on_download(result, self.now);
        self.next()
    }

    /// Waits as long as the fetch does.
    fn wait(&mut self) -> FetchAction {
        match self.next() {
            FetchAction::Wait(until) => {
                self.now = until;
                self.next()
            }
            other => other,
        }
    }
}

fn download(from: &NodeName) -> FetchAction {
    FetchAction::Download { from: from.clone(), is_single_source: false }
}

#[test]
fn first_of_those_that_want_it_uses_the_origin() {
    let (mut fetch, order) = Fixture::of_rank(0, 3);
    let wanted = [(&order[1], Availability::Wanted), (&order[2], Availability::Wanted)];
    assert_eq!(fetch.answer(&wanted), FetchAction::UseOrigin(OriginReason::IsOwner));

    let (mut fetch, order) = Fixture::of_rank(1, 3);
    let answers = [(&order[0], Availability::Absent), (&order[2], Availability::Wanted)];
    let expected = FetchAction::UseOrigin(OriginReason::IsOwner);
    assert_eq!(fetch.answer(&answers), expected, "one that does not want it is no owner");
}

#[test]
fn others_wait_for_the_owner_and_download_from_it() {
    let (mut fetch, order) = Fixture::of_rank(1, 3);
    let wanted = [(&order[0], Availability::Wanted), (&order[2], Availability::Wanted)];
    assert_eq!(fetch.answer(&wanted), FetchAction::Request(order[0].clone()));
    fetch.state.on_requested(true, fetch.now);
    for received in 0..100 {
        assert_eq!(fetch.wait(), FetchAction::Poll(order[0].clone()));
        fetch.state.on_progress(PollReply::Answered(Availability::Fetching(received)), fetch.now);
    }
    assert_eq!(fetch.wait(), FetchAction::Poll(order[0].clone()));
    fetch.state.on_progress(PollReply::Answered(Availability::Held), fetch.now);
    assert_eq!(fetch.next(), download(&order[0]));
    assert_eq!(fetch.download(Ok(())), FetchAction::Done(order[0].clone()));
}

#[test]
fn member_that_fetches_goes_before_the_owner() {
    let (mut fetch, order) = Fixture::of_rank(0, 3);
    let answers = [(&order[1], Availability::Wanted), (&order[2], Availability::Fetching(5))];
    let action = fetch.answer(&answers);
    assert_eq!(action, FetchAction::Wait(fetch.now + fetch.state.times.poll));
    assert_eq!(fetch.wait(), FetchAction::Poll(order[2].clone()));
}

#[test]
fn owner_without_progress_for_20_s_is_replaced() {
    let (mut fetch, order) = Fixture::of_rank(1, 3);
    let start = fetch.now;
    fetch.answer(&[(&order[0], Availability::Fetching(5))]);
    while let FetchAction::Poll(owner) = fetch.wait() {
        assert_eq!(owner, order[0]);
        fetch.state.on_progress(PollReply::Answered(Availability::Fetching(5)), fetch.now);
    }
    assert_eq!((fetch.now - start).as_secs(), 22, "20 s after the first answer");
    let answers = [(&order[0], Availability::Fetching(5)), (&order[2], Availability::Wanted)];
    assert_eq!(fetch.answer(&answers), FetchAction::UseOrigin(OriginReason::IsOwner));
}

#[test]
fn dead_owner_is_replaced_after_three_missed_polls() {
    let (mut fetch, order) = Fixture::of_rank(2, 3);
    let start = fetch.now;
    fetch.answer(&[(&order[0], Availability::Fetching(5))]);
    for _ in 0..3 {
        assert_eq!(fetch.wait(), FetchAction::Poll(order[0].clone()));
        fetch.state.on_progress(PollReply::Unreachable, fetch.now);
    }
    assert_eq!((fetch.now - start).as_secs(), 6);
    let answers = [(&order[1], Availability::Wanted)];
    assert_eq!(fetch.answer(&answers), FetchAction::Request(order[1].clone()));
}

#[test]
fn fourth_owner_is_the_origin() {
    let (mut fetch, order) = Fixture::of_rank(5, 6);
    let wanted: Vec<_> = order[..5].iter().map(|it| (it, Availability::Wanted)).collect();
    for owner in &order[..3] {
        assert_eq!(fetch.answer(&wanted), FetchAction::Request(owner.clone()));
        fetch.state.on_requested(false, fetch.now);
    }
    assert_eq!(fetch.answer(&wanted), FetchAction::UseOrigin(OriginReason::OwnersFailed));
}

#[test]
fn owner_that_answers_late_is_asked_again_three_times() {
    let (mut fetch, order) = Fixture::of_rank(1, 3);
    for seconds in [1, 2, 4] {
        assert!(matches!(fetch.wait(), FetchAction::Ask(_)));
        assert_eq!(fetch.state.answer_timeout().as_secs(), seconds);
        let answers = BTreeMap::from([(order[2].clone(), Availability::Wanted)]);
        fetch.state.on_answers(&answers, &BTreeSet::from([order[0].clone()]), 0, fetch.now);
        assert!(matches!(fetch.next(), FetchAction::Wait(_)));
    }
    assert!(matches!(fetch.wait(), FetchAction::Ask(_)));
    fetch.state.on_answers(&BTreeMap::new(), &BTreeSet::from([order[0].clone()]), 0, fetch.now);
    assert_eq!(fetch.next(), FetchAction::UseOrigin(OriginReason::IsOwner));

    let (mut fetch, order) = Fixture::of_rank(1, 3);
    fetch.next();
    let silent = BTreeSet::from([order[2].clone()]);
    fetch.state.on_answers(&BTreeMap::new(), &silent, 0, fetch.now);
    let expected = FetchAction::UseOrigin(OriginReason::IsOwner);
    assert_eq!(fetch.next(), expected, "a silent member of a lower rank does not matter");
}

#[test]
fn busy_holders_are_asked_again_for_ten_minutes() {
    let (mut fetch, order) = Fixture::of_rank(2, 3);
    let held = [(&order[0], Availability::Held), (&order[1], Availability::Held)];
    let start = fetch.now;
    let mut attempts = 0;
    let end = loop {
        match fetch.wait() {
            FetchAction::Ask(_) => drop(fetch.answer(&held)),
            FetchAction::Download { .. } => {
                attempts += 1;
                fetch.state.on_download(Err(DownloadFailure::Busy), fetch.now);
            }
            end => break end,
        }
    };
    assert_eq!(end, FetchAction::UseOrigin(OriginReason::PeersBusy));
    let seconds = (fetch.now - start).as_secs();
    assert!(
        (600..620).contains(&seconds) && (140..180).contains(&attempts),
        "{seconds} {attempts}"
    );
}

#[test]
fn mixture_is_downloaded_again_from_one_peer() {
    let (mut fetch, order) = Fixture::of_rank(2, 3);
    let held = [(&order[0], Availability::Held), (&order[1], Availability::Held)];
    let FetchAction::Download { from, .. } = fetch.answer(&held) else { panic!("no download") };
    let again = fetch.download(Err(DownloadFailure::WrongMixture));
    assert_eq!(again, FetchAction::Download { from: from.clone(), is_single_source: true });
    fetch.quarantine.add(&from, fetch.now);
    fetch.state.on_download(Err(DownloadFailure::WrongContent), fetch.now);
    let other = order[..2].iter().find(|it| **it != from).unwrap();
    fetch.wait();
    let last = fetch.answer(&[(other, Availability::Held), (&from, Availability::Held)]);
    assert_eq!(last, FetchAction::Download { from: other.clone(), is_single_source: true });
}

/// What a peer of the property test does.
#[derive(Debug, Clone, Copy)]
enum Behaviour {
    Answers(Availability),
    Silent,
}

fn behaviour() -> impl Strategy<Value = Behaviour> {
    prop_oneof![
        4 => Just(Behaviour::Answers(Availability::Held)),
        2 => (0..100_u64).prop_map(|it| Behaviour::Answers(Availability::Fetching(it))),
        2 => Just(Behaviour::Answers(Availability::Wanted)),
        1 => Just(Behaviour::Answers(Availability::Absent)),
        2 => Just(Behaviour::Silent),
    ]
}

fn result() -> impl Strategy<Value = Result<(), DownloadFailure>> {
    prop_oneof![
        1 => Just(Ok(())),
        2 => Just(Err(DownloadFailure::Busy)),
        4 => (0..4_u64).prop_map(|it| Err(DownloadFailure::Interrupted(it))),
        1 => Just(Err(DownloadFailure::Unusable)),
        1 => Just(Err(DownloadFailure::TooSlow)),
        4 => Just(Err(DownloadFailure::WrongContent)),
        2 => Just(Err(DownloadFailure::WrongMixture)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn each_order_of_failures_ends_with_content_or_origin(
        behaviours in prop::collection::vec(prop::collection::vec(behaviour(), 1..6), 0..6),
        results in prop::collection::vec(result(), 1..12),
        rank in any::<prop::sample::Index>(),
        random in any::<u64>(),
        accepts in any::<u64>(),
    ) {
        let count = behaviours.len() + 1;
        let (mut fetch, order) = Fixture::of_rank(rank.index(count), count);
        let me = fetch.state.me.clone();
        let others: Vec<_> = order.into_iter().filter(|it| *it != me).collect();
        let start = fetch.now;
        let (mut round, mut downloads) = (0_usize, 0_usize);
        let mut wrong = BTreeSet::new();
        let answer = |peer: &NodeName, round: usize| {
            let index = others.iter().position(|it| it == peer).unwrap();
            // The last behaviour lasts, so that a peer may be stuck.
            let all = &behaviours[index];
            match all[round.min(all.len() - 1)] {
                Behaviour::Answers(it) => Some(it),
                Behaviour::Silent => None,
            }
        };
        for _ in 0..5000 {
            round += 1;
            match fetch.next() {
                FetchAction::Ask(peers) => {
                    prop_assert!(peers.iter().all(|it| !wrong.contains(it) && *it != me));
                    let mut silent = BTreeSet::new();
                    let mut answers = BTreeMap::new();
                    for peer in peers {
                        match answer(&peer, round) {
                            Some(it) => drop(answers.insert(peer, it)),
                            None => drop(silent.insert(peer)),
                        }
                    }
                    fetch.state.on_answers(&answers, &silent, random, fetch.now);
                }
                FetchAction::Request(peer) => {
                    prop_assert!(peer != me);
                    fetch.state.on_requested(accepts >> (round % 64) & 1 == 1, fetch.now);
                }
                FetchAction::Poll(peer) => {
                    prop_assert!(peer != me);
                    let reply = match answer(&peer, round) {
                        Some(it) => PollReply::Answered(it),
                        None if round % 2 == 0 => PollReply::Silent,
                        None => PollReply::Unreachable,
                    };
                    fetch.state.on_progress(reply, fetch.now);
                }
                FetchAction::Wait(until) => {
                    prop_assert!(until > fetch.now);
                    fetch.now = until;
                }
                FetchAction::Download { from, is_single_source } => {
                    prop_assert!(!wrong.contains(&from), "{from} is in quarantine");
                    let result = results[downloads % results.len()];
                    downloads += 1;
                    // What the download guarantees: one source makes no mixture.
                    let result = match result {
                        Err(DownloadFailure::WrongMixture) if is_single_source => {
                            Err(DownloadFailure::WrongContent)
                        }
                        other => other,
                    };
                    if result == Err(DownloadFailure::WrongContent) {
                        fetch.quarantine.add(&from, fetch.now);
                        wrong.insert(from);
                    }
                    fetch.state.on_download(result, fetch.now);
                }
                FetchAction::Done(from) => {
                    prop_assert!(others.contains(&from));
                    return Ok(());
                }
                FetchAction::UseOrigin(_) => {
                    let passed = (fetch.now - start).as_secs();
                    prop_assert!(passed < 3600, "the origin is used after {passed} s");
                    return Ok(());
                }
            }
        }
        prop_assert!(false, "the fetch does not end");
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn members_that_see_each_other_have_one_owner(
        count in 1..64_usize,
        content in any::<u64>(),
    ) {
        let digest = Digest::of_bytes(&content.to_be_bytes());
        let members = nodes(count);
        let now = Instant::now();
        let owners = members.iter().filter(|me| {
            let mut state = FetchState::new(digest, (*me).clone(), FetchTimes::default());
            let others = members.iter().filter(|it| it != me).cloned();
            let answers = others.map(|it| (it, Availability::Wanted)).collect();
            if matches!(state.next(&members, &Quarantine::default(), now), FetchAction::Ask(_)) {
                state.on_answers(&answers, &BTreeSet::new(), 0, now);
            }
            let action = state.next(&members, &Quarantine::default(), now);
            matches!(action, FetchAction::UseOrigin(_))
        });
        prop_assert_eq!(owners.count(), 1);
    }
}
