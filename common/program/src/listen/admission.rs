//! Decides which connections of a listener are admitted, by counts alone. Pure: without a clock and
//! without I/O.

use std::{collections::BTreeMap, time::Duration};

use super::source::Source;

/// The limits of one listener.
///
/// Limits of an address do not apply to clients on this machine, which have one address together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections whose client is not known yet.
    pub pending: usize,
    /// The same, of one address.
    pub pending_per_address: usize,
    /// Further pending connections, for addresses that have none: a flood of a few addresses does
    /// not keep others out.
    pub pending_reserve: usize,
    /// How long a connection may be pending.
    pub pending_time: Duration,
    /// The same for a connection that arrives while half of `pending` is in use.
    pub hurried_time: Duration,
    /// Connections of clients without an identity.
    pub anonymous: usize,
    /// The same, of one address.
    pub anonymous_per_address: usize,
    /// Connections of clients with an identity.
    pub known: usize,
    /// The same, of one identity.
    pub per_identity: usize,
}

/// What a client has shown of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity<'a> {
    /// A whole request, without an identity.
    Anonymous,
    /// The owner of a key or of a login.
    Known(&'a str),
    /// A client that is never refused, such as the controller.
    Trusted,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Too many connections are pending.
    PendingFull,
    /// Too many connections of the address are pending.
    AddressPending,
    /// The client did not show in time what it is.
    Unidentified,
    /// The client's key or login is not known.
    UnknownIdentity,
    /// Too many connections without an identity.
    AnonymousFull,
    /// Too many connections of the address, without an identity.
    AddressFull,
    /// Too many connections of known clients.
    KnownFull,
    /// Too many connections of this client.
    IdentityFull,
    /// A request names a host that the server does not have.
    ForeignHost,
    /// A request comes from a page of another origin.
    ForeignOrigin,
}

impl Refusal {
    /// All causes of a refusal, for metrics.
    pub const ALL: [Self; 10] = [
        Self::PendingFull,
        Self::AddressPending,
        Self::Unidentified,
        Self::UnknownIdentity,
        Self::AnonymousFull,
        Self::AddressFull,
        Self::KnownFull,
        Self::IdentityFull,
        Self::ForeignHost,
        Self::ForeignOrigin,
    ];

    /// The value of the label `cause` in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PendingFull => "pending_full",
            Self::AddressPending => "address_pending",
            Self::Unidentified => "unidentified",
            Self::UnknownIdentity => "unknown_identity",
            Self::AnonymousFull => "anonymous_full",
            Self::AddressFull => "address_full",
            Self::KnownFull => "known_full",
            Self::IdentityFull => "identity_full",
            Self::ForeignHost => "foreign_host",
            Self::ForeignOrigin => "foreign_origin",
        }
    }
}

/// The group in which a connection counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The client of the connection is not known yet.
    Pending,
    /// The connection has a place without an identity.
    Anonymous,
    /// The connection has a place of this identity.
    Known(String),
    /// The connection is not counted.
    Trusted,
}

/// The connections of one listener.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    pending: Counts<Source>,
    anonymous: Counts<Source>,
    known: Counts<String>,
}

impl Admission {
    /// A listener without connections.
    pub const fn new(limits: Limits) -> Self {
        Self { limits, pending: Counts::new(), anonymous: Counts::new(), known: Counts::new() }
    }

    /// Counts a new connection as pending. Returns how long it may be that.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn enter(&mut self, source: Option<Source>) -> Result<Duration, Refusal> {
        let limits = &self.limits;
        let of_source = source.map_or(0, |source| self.pending.count(&source));
        if of_source >= limits.pending_per_address {
            return Err(Refusal::AddressPending);
        }
        let is_first = source.is_some() && of_source == 0;
        let reserve = if is_first { limits.pending_reserve } else { 0 };
        if self.pending.total >= limits.pending.saturating_add(reserve) {
            return Err(Refusal::PendingFull);
        }
        let is_busy = self.pending.total >= limits.pending / 2;
        self.pending.add(source);
        Ok(if is_busy { limits.hurried_time } else { limits.pending_time })
    }

    /// Gives a pending connection a place. Returns where it is counted from now on.
    ///
    /// # Errors
    /// Why it is refused; it stays pending until it ends.
    pub fn admit(
        &mut self,
        source: Option<Source>,
        identity: Identity<'_>,
    ) -> Result<Stage, Refusal> {
        let limits = &self.limits;
        let stage = match identity {
            Identity::Anonymous => {
                let of_source = source.map_or(0, |source| self.anonymous.count(&source));
                if of_source >= limits.anonymous_per_address {
                    return Err(Refusal::AddressFull);
                }
                if self.anonymous.total >= limits.anonymous {
                    return Err(Refusal::AnonymousFull);
                }
                self.anonymous.add(source);
                Stage::Anonymous
            }
            Identity::Known(name) => {
                let name = name.to_owned();
                if self.known.count(&name) >= limits.per_identity {
                    return Err(Refusal::IdentityFull);
                }
                if self.known.total >= limits.known {
                    return Err(Refusal::KnownFull);
                }
                self.known.add(Some(name.clone()));
                Stage::Known(name)
            }
            Identity::Trusted => Stage::Trusted,
        };
        self.pending.remove(source);
        Ok(stage)
    }

    /// Forgets a connection that ended.
    pub fn leave(&mut self, source: Option<Source>, stage: Stage) {
        match stage {
            Stage::Pending => self.pending.remove(source),
            Stage::Anonymous => self.anonymous.remove(source),
            Stage::Known(name) => self.known.remove(Some(name)),
            Stage::Trusted => {}
        }
    }

    /// Number of pending connections.
    pub const fn pending(&self) -> usize {
        self.pending.total
    }
}

/// Connections by a key. Those without one count only in the total.
#[derive(Debug)]
struct Counts<K> {
    total: usize,
    by_key: BTreeMap<K, usize>,
}

impl<K: Ord> Counts<K> {
    const fn new() -> Self {
        Self { total: 0, by_key: BTreeMap::new() }
    }

    fn count(&self, key: &K) -> usize {
        self.by_key.get(key).copied().unwrap_or_default()
    }

    fn add(&mut self, key: Option<K>) {
        self.total += 1;
        if let Some(key) = key {
            *self.by_key.entry(key).or_default() += 1;
        }
    }

    fn remove(&mut self, key: Option<K>) {
        self.total = self.total.saturating_sub(1);
        let Some(key) = key else { return };
        if let Some(count) = self.by_key.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.by_key.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::{super::source::Peer, *};

    const LIMITS: Limits = Limits {
        pending: 8,
        pending_per_address: 3,
        pending_reserve: 2,
        pending_time: Duration::from_secs(5),
        hurried_time: Duration::from_secs(1),
        anonymous: 4,
        anonymous_per_address: 2,
        known: 5,
        per_identity: 2,
    };

    /// A machine; 0 is this one.
    fn source(number: u8) -> Option<Source> {
        let ip = if number == 0 { [127, 0, 0, 1] } else { [10, 0, 0, number] };
        Source::from_peer(Peer::Address((ip, 1).into()))
    }

    #[test]
    fn newest_is_refused_while_the_stage_is_full() {
        let mut admission = Admission::new(LIMITS);
        let times: Vec<_> = (0..9).map(|_| admission.enter(source(0))).collect();
        let (whole, hurried) = (Ok(LIMITS.pending_time), Ok(LIMITS.hurried_time));
        assert!(times[..4].iter().all(|time| *time == whole), "{times:?}");
        assert!(times[4..8].iter().all(|time| *time == hurried), "{times:?}");
        assert_eq!(times[8], Err(Refusal::PendingFull));
        admission.leave(source(0), Stage::Pending);
        assert_eq!(admission.enter(source(0)), hurried);
    }

    #[test]
    fn flood_of_one_address_leaves_room_for_others() {
        let mut admission = Admission::new(LIMITS);
        let flood = (0..100).filter(|_| admission.enter(source(1)).is_ok()).count();
        assert_eq!(flood, LIMITS.pending_per_address);
        assert_eq!(admission.enter(source(1)), Err(Refusal::AddressPending));
        assert!(admission.enter(source(2)).is_ok());
    }

    #[test]
    fn first_connection_of_an_address_enters_a_full_stage() {
        let mut admission = Admission::new(LIMITS);
        while admission.enter(source(0)).is_ok() {}
        assert!(admission.enter(source(1)).is_ok());
        assert_eq!(admission.enter(source(1)), Err(Refusal::PendingFull), "it is the second");
        assert!(admission.enter(source(2)).is_ok());
        assert_eq!(admission.enter(source(3)), Err(Refusal::PendingFull), "the reserve is used");
    }

    #[test]
    fn identity_has_its_own_limit_and_a_trusted_one_none() {
        let mut admission = Admission::new(LIMITS);
        let mut connect = |number, identity| {
            admission.enter(source(number)).unwrap();
            let admitted = admission.admit(source(number), identity);
            if admitted.is_err() {
                admission.leave(source(number), Stage::Pending);
            }
            admitted.map(drop)
        };
        for name in ["a", "b"] {
            assert_eq!(connect(1, Identity::Known(name)), Ok(()));
            assert_eq!(connect(1, Identity::Known(name)), Ok(()));
            assert_eq!(connect(1, Identity::Known(name)), Err(Refusal::IdentityFull));
        }
        assert_eq!(connect(2, Identity::Known("c")), Ok(()));
        assert_eq!(connect(2, Identity::Known("d")), Err(Refusal::KnownFull));
        for _ in 0..2 {
            assert_eq!(connect(1, Identity::Anonymous), Ok(()));
        }
        assert_eq!(connect(1, Identity::Anonymous), Err(Refusal::AddressFull));
        for _ in 0..2 {
            assert_eq!(connect(0, Identity::Anonymous), Ok(()), "addresses of this machine");
        }
        assert_eq!(connect(2, Identity::Anonymous), Err(Refusal::AnonymousFull));
        assert_eq!(connect(1, Identity::Trusted), Ok(()));
    }

    /// A connection of the model.
    type Open = (Option<Source>, Stage);

    #[derive(Debug, Clone)]
    enum Action {
        Enter(u8),
        Admit(prop::sample::Index, Option<u8>),
        Leave(prop::sample::Index),
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            (0_u8..4).prop_map(Action::Enter),
            (any::<prop::sample::Index>(), prop::option::of(0_u8..4))
                .prop_map(|(index, identity)| Action::Admit(index, identity)),
            any::<prop::sample::Index>().prop_map(Action::Leave),
        ]
    }

    proptest! {
        #[test]
        fn limits_apply_and_nothing_is_left_behind(
            actions in prop::collection::vec(action(), 0..200),
        ) {
            let mut admission = Admission::new(LIMITS);
            let mut open: Vec<Open> = Vec::new();
            for action in actions {
                match action {
                    Action::Enter(number) => {
                        let of_source = |it: &&Open| {
                            it.0 == source(number) && it.1 == Stage::Pending
                        };
                        let pending = open.iter().filter(|it| it.1 == Stage::Pending).count();
                        let own = open.iter().filter(of_source).count();
                        let entered = admission.enter(source(number));
                        // Nobody is refused without a reason, and no older one is removed.
                        let is_free = pending < LIMITS.pending
                            && (number == 0 || own < LIMITS.pending_per_address);
                        prop_assert!(!is_free || entered.is_ok());
                        if entered.is_ok() {
                            open.push((source(number), Stage::Pending));
                        }
                    }
                    Action::Admit(index, name) if !open.is_empty() => {
                        let at = index.index(open.len());
                        if open[at].1 == Stage::Pending {
                            let name = name.map(|name| name.to_string());
                            let identity =
                                name.as_deref().map_or(Identity::Anonymous, Identity::Known);
                            if let Ok(stage) = admission.admit(open[at].0, identity) {
                                open[at].1 = stage;
                            }
                        }
                    }
                    Action::Leave(index) if !open.is_empty() => {
                        let (source, stage) = open.swap_remove(index.index(open.len()));
                        admission.leave(source, stage);
                    }
                    _ => {}
                }
                let count = |is: &dyn Fn(&Open) -> bool| {
                    open.iter().filter(|it| is(it)).count()
                };
                let pending = count(&|it| it.1 == Stage::Pending);
                prop_assert_eq!(admission.pending(), pending);
                prop_assert!(pending <= LIMITS.pending + LIMITS.pending_reserve);
                prop_assert!(count(&|it| it.1 == Stage::Anonymous) <= LIMITS.anonymous);
                prop_assert!(count(&|it| matches!(it.1, Stage::Known(_))) <= LIMITS.known);
                for number in 0..4_u8 {
                    let name = Stage::Known(number.to_string());
                    prop_assert!(count(&|it| it.1 == name) <= LIMITS.per_identity);
                    if number > 0 {
                        let own = |it: &Open, stage| {
                            it.0 == source(number) && it.1 == stage
                        };
                        prop_assert!(
                            count(&|it| own(it, Stage::Pending)) <= LIMITS.pending_per_address
                        );
                        prop_assert!(
                            count(&|it| own(it, Stage::Anonymous)) <= LIMITS.anonymous_per_address
                        );
                    }
                }
            }
            for (source, stage) in open {
                admission.leave(source, stage);
            }
            prop_assert_eq!(admission.pending.total + admission.anonymous.total, 0);
            prop_assert!(admission.known.total == 0 && admission.known.by_key.is_empty());
            prop_assert!(admission.pending.by_key.is_empty());
        }
    }
}
