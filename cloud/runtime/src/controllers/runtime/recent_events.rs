//! Counts the repetitions of an object's Events, and limits those with its numbers. Pure.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::{Duration, Instant},
};

/// How long a repeated Event increases the count of the first one.
const SERIES: Duration = Duration::from_secs(6 * 60);

/// Events of an object that are remembered to count repetitions.
const MAX_PER_OBJECT: usize = 8;

/// The shortest time between two Events with the numbers of an object.
const SUMMARY_PAUSE: Duration = Duration::from_secs(60);

/// The Event with the numbers of an object that was published last.
#[derive(Debug, Default)]
pub struct LastSummary {
    /// Whether a status was seen.
    has_begun: bool,
    /// The digest of the Event; `None` if the status needed none.
    published: Option<u64>,
    at: Option<Instant>,
}

/// What happens to the Event with the numbers of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryTurn {
    /// The Event is published now.
    Publish,
    /// Another one was published just before: look again after this time.
    Wait(Duration),
    /// There is nothing new.
    Nothing,
}

impl LastSummary {
    /// Decides on the Event of a status, by its digest. `before` computes that of the status before the
    /// first one: another controller published it.
    pub fn turn(
        &mut self,
        before: impl FnOnce() -> Option<u64>,
        next: Option<u64>,
        now: Instant,
    ) -> SummaryTurn {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.published = before();
        }
        if next.is_none() || next == self.published {
            self.published = next;
            return SummaryTurn::Nothing;
        }
        let free_at = self.at.map(|at| at + SUMMARY_PAUSE).filter(|at| *at > now);
        if let Some(at) = free_at {
            return SummaryTurn::Wait(at.saturating_duration_since(now));
        }
        (self.published, self.at) = (next, Some(now));
        SummaryTurn::Publish
    }
}

/// The Events of an object that were published last, the newest last.
#[derive(Debug, Default)]
pub struct RecentEvents(Vec<Series>);

/// An Event and its repetitions.
#[derive(Debug)]
struct Series {
    /// A hash of reason and note. With another note it is another Event: the API server does not
    /// allow to change a note.
    digest: u64,
    /// The end of the Event's name.
    suffix: u64,
    count: i32,
    at: Instant,
}

impl RecentEvents {
    /// The suffix of the name of the Event, and its count. An Event with the count 1 is created,
    /// another one is updated.
    pub fn occurred(&mut self, digest: u64, suffix: u64, now: Instant) -> (u64, i32) {
        self.0.retain(|series| now < series.at + SERIES);
        let known = self.0.iter().position(|series| series.digest == digest);
        let new = Series { digest, suffix, count: 0, at: now };
        let series = known.map_or(new, |position| self.0.remove(position));
        let (suffix, count) = (series.suffix, series.count.saturating_add(1));
        // `Vec` would reserve room for four, and most objects have one or two.
        self.0.reserve_exact(1);
        self.0.push(Series { count, at: now, ..series });
        if self.0.len() > MAX_PER_OBJECT {
            self.0.remove(0);
        }
        (suffix, count)
    }

    /// The Event does not exist any more, or was not created.
    pub fn forget(&mut self, digest: u64) {
        self.0.retain(|series| series.digest != digest);
    }
}

/// Identifies an Event of an object.
pub fn digest(reason: &str, note: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (reason, note).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn event_with_another_note_is_another_event() {
        let (mut events, now) = (RecentEvents::default(), Instant::now());
        let mut occurred =
            |note: &str, suffix, now| events.occurred(digest("Serving", note), suffix, now);
        assert_eq!(occurred("version 1 is served", 1, now), (1, 1));
        assert_eq!(occurred("version 1 is served", 2, now), (1, 2));
        assert_eq!(occurred("version 2 is served", 3, now), (3, 1));
        assert_eq!(occurred("version 1 is served", 4, now + SERIES), (4, 1));
    }

    #[test]
    fn numbers_are_published_once_a_minute_and_only_if_they_differ() {
        use SummaryTurn::{Nothing, Publish, Wait};
        let (mut last, start) = (LastSummary::default(), Instant::now());
        let mut turn =
            |before, next, second| last.turn(|| before, next, start + Duration::from_secs(second));
        assert_eq!(turn(Some(1), Some(1), 0), Nothing, "the controller before published it");
        assert_eq!(turn(Some(1), Some(2), 1), Publish);
        assert_eq!(turn(Some(2), Some(3), 11), Wait(Duration::from_secs(50)));
        assert_eq!(turn(Some(3), Some(2), 12), Nothing, "as it was published");
        assert_eq!(turn(Some(2), Some(4), 61), Publish, "the newest one");
        assert_eq!(turn(Some(4), None, 62), Nothing);
        assert_eq!(turn(None, Some(4), 63), Wait(Duration::from_secs(58)));
        assert_eq!(turn(Some(4), Some(4), 121), Publish);
        assert_eq!(LastSummary::default().turn(|| None, Some(1), start), Publish);
    }

    #[test]
    fn newest_events_of_an_object_are_remembered() {
        let (mut events, now) = (RecentEvents::default(), Instant::now());
        for n in 0..1000 {
            events.occurred(n, n, now);
        }
        assert_eq!(events.0.len(), MAX_PER_OBJECT);
        assert_eq!(events.occurred(999, 1, now), (999, 2));
        events.forget(999);
        assert_eq!(events.occurred(999, 2, now), (2, 1));
    }
}
