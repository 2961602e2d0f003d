//! What a watch knows of its kind: whether all objects were listed, and whether the API server has
//! the kind at all. Decides what of that is logged. Pure.

use kube::runtime::watcher;

use crate::kubernetes::outage::ApiError as _;

/// What is known of the objects of a kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Listing {
    /// The cache had every object once. It stays so while the watch fails: the cache then has the
    /// last known objects, and learns every change later.
    pub is_complete: bool,
    /// The API server does not serve the kind: its CRD is missing.
    pub is_missing: bool,
}

impl Listing {
    /// Whether the controller need not wait for the kind any more.
    pub fn is_decided(self) -> bool {
        self.is_complete || self.is_missing
    }
}

/// The state of a watch between two of its events.
#[derive(Debug, Default)]
pub struct WatchState {
    listing: Listing,
    is_failing: bool,
}

/// What an event changes, as far as it is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// The event changes nothing that is logged.
    None,
    /// The API server does not serve the kind.
    Missing,
    /// The kind is served, which was missing.
    Appeared,
    /// The API server refuses the request.
    Failed,
    /// The watch works, which failed.
    Recovered,
}

/// Whether an event shows that the API server answered a request for these objects. The beginning
/// of a list comes before its request.
pub fn is_success<K>(event: &watcher::Event<K>) -> bool {
    match event {
        watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone => true,
        watcher::Event::Init | watcher::Event::InitApply(_) => false,
    }
}

/// What an error means for the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The API server is unreachable or cannot answer.
    Outage,
    /// The API server does not serve the kind.
    Missing,
    /// The API server no longer has the changes since the last one that was seen, as after its
    /// restart. A new list is all that it needs.
    Expired,
    /// The API server refused the request for another reason.
    Refused,
}

impl Failure {
    /// Classifies an error of a watch by its status code.
    pub fn from_error(error: &watcher::Error) -> Self {
        if error.is_outage() {
            return Self::Outage;
        }
        let code = match error {
            watcher::Error::InitialListFailed(kube::Error::Api(status))
            | watcher::Error::WatchStartFailed(kube::Error::Api(status))
            | watcher::Error::WatchError(status) => status.code,
            _ => return Self::Refused,
        };
        match code {
            404 => Self::Missing,
            410 => Self::Expired,
            _ => Self::Refused,
        }
    }

    /// Whether the next attempt must list the objects. A watch would go on at a version of before.
    pub fn needs_list(self) -> bool {
        matches!(self, Self::Missing | Self::Expired)
    }
}

impl WatchState {
    /// What is known of the objects.
    pub fn listing(&self) -> Listing {
        self.listing
    }

    /// The API server answered with objects.
    pub fn on_success<K>(&mut self, event: &watcher::Event<K>) -> Transition {
        self.listing.is_complete |= matches!(event, watcher::Event::InitDone);
        let was_failing = std::mem::take(&mut self.is_failing);
        if std::mem::take(&mut self.listing.is_missing) {
            Transition::Appeared
        } else if was_failing {
            Transition::Recovered
        } else {
            Transition::None
        }
    }

    /// Processes a failed request of the watch. Returns what to log.
    pub fn on_failure(&mut self, failure: Failure) -> Transition {
        let (was_so, transition) = match failure {
            // An outage is logged once for all watches.
            Failure::Outage | Failure::Expired => return Transition::None,
            Failure::Missing => {
                self.is_failing = false;
                (std::mem::replace(&mut self.listing.is_missing, true), Transition::Missing)
            }
            Failure::Refused => (std::mem::replace(&mut self.is_failing, true), Transition::Failed),
        };
        if was_so { Transition::None } else { transition }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Event = watcher::Event<()>;

    fn refused(code: u16) -> watcher::Error {
        let status = kube::core::Status::failure("no", "Reason").with_code(code).boxed();
        watcher::Error::InitialListFailed(kube::Error::Api(status))
    }

    /// The transitions of a list that is tried again and again, as kube's watcher reports it.
    fn retried(state: &mut WatchState, code: u16, times: usize) -> Vec<Transition> {
        let mut transitions = Vec::new();
        for _ in 0..times {
            assert!(!is_success(&Event::Init));
            transitions.push(state.on_failure(Failure::from_error(&refused(code))));
        }
        transitions.retain(|transition| *transition != Transition::None);
        transitions
    }

    #[test]
    fn missing_kind_is_named_once_and_again_when_it_appears() {
        let mut state = WatchState::default();
        assert_eq!(retried(&mut state, 404, 100), [Transition::Missing]);
        assert_eq!(state.listing(), Listing { is_complete: false, is_missing: true });
        assert!(state.listing().is_decided());
        assert_eq!(retried(&mut state, 503, 3), [], "an outage meanwhile");
        assert!(is_success(&Event::InitDone) && !is_success(&Event::InitApply(())));
        assert_eq!(state.on_success(&Event::InitDone), Transition::Appeared);
        assert_eq!(state.listing(), Listing { is_complete: true, is_missing: false });
        assert_eq!(state.on_success(&Event::Apply(())), Transition::None);
    }

    #[test]
    fn kind_that_disappears_stays_complete() {
        let mut state = WatchState::default();
        assert_eq!(state.on_success(&Event::InitDone), Transition::None);
        assert_eq!(state.on_success(&Event::Delete(())), Transition::None);
        assert_eq!(retried(&mut state, 404, 2), [Transition::Missing]);
        assert_eq!(state.listing(), Listing { is_complete: true, is_missing: true });
    }

    #[test]
    fn watch_whose_version_expired_is_listed_again_without_a_warning() {
        let status = || kube::core::Status::failure("too old", "Expired").with_code(410).boxed();
        let mut state = WatchState::default();
        for error in [
            watcher::Error::WatchError(status()),
            watcher::Error::WatchStartFailed(kube::Error::Api(status())),
        ] {
            let failure = Failure::from_error(&error);
            assert!(failure == Failure::Expired && failure.needs_list());
            assert_eq!(state.on_failure(failure), Transition::None);
        }
        assert_eq!(state.on_success(&Event::InitDone), Transition::None);
        assert!(!Failure::from_error(&refused(503)).needs_list());
    }

    #[test]
    fn refused_list_is_logged_once_until_it_succeeds() {
        let mut state = WatchState::default();
        assert_eq!(retried(&mut state, 403, 50), [Transition::Failed]);
        assert!(!state.listing().is_decided(), "the controller waits for it");
        assert_eq!(state.on_success(&Event::InitDone), Transition::Recovered);
        assert_eq!(retried(&mut state, 403, 2), [Transition::Failed]);
    }
}
