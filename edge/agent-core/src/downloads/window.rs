//! The windows of the day in which downloads may run, in the local time of the node.

use std::{
    fmt::{self, Display, Formatter},
    str::FromStr,
    time::Duration,
};

use jiff::civil::Time;

/// The longest time until the clock is read again: it may be set, and the local time may change.
const RECHECK: Duration = Duration::from_mins(1);
const MINUTES_PER_DAY: u32 = 24 * 60;

/// The windows of the day in which downloads may run. Without any, they always may.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DownloadWindows(Vec<Window>);

/// A window, in minutes of the day. It lasts over midnight if `to` is not after `from`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    from: u32,
    to: u32,
}

/// The text is not a list of windows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWindow {
    /// The text is not `HH:MM-HH:MM`.
    #[error("{0:?} is not HH:MM-HH:MM")]
    Malformed(String),
    /// The window begins and ends at the same time.
    #[error("{0:?} begins and ends at the same time")]
    Empty(String),
}

/// Whether downloads may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowState {
    /// All downloads may run.
    Open,
    /// Downloads wait until the local time `opens`.
    Closed {
        /// The hour and the minute at which the next window begins.
        opens: (u32, u32),
    },
}

impl DownloadWindows {
    /// Whether there are none, so that downloads always may run.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether downloads may run at this local time, and after which time to decide again.
    /// `is_clock_set`: whether the clock can be right. Otherwise downloads may run.
    pub fn at(&self, local: Time, is_clock_set: bool) -> (WindowState, Duration) {
        if !is_clock_set || self.is_empty() {
            return (WindowState::Open, RECHECK);
        }
        let [hours, minutes, seconds] = [local.hour(), local.minute(), local.second()]
            .map(|part| u32::from(part.unsigned_abs()));
        let minute = hours * 60 + minutes;
        let until = |at: u32| (at + MINUTES_PER_DAY - minute - 1) % MINUTES_PER_DAY + 1;
        let is_open = self.0.iter().any(|window| window.contains(minute));
        let opens = self.0.iter().map(|window| window.from).min_by_key(|from| until(*from));
        let changes = self.0.iter().flat_map(|window| [until(window.from), until(window.to)]);
        let passed = Duration::new(seconds.into(), local.subsec_nanosecond().unsigned_abs());
        let change =
            changes.min().map(|minutes| Duration::from_mins(minutes.into()).saturating_sub(passed));
        let next = change.map_or(RECHECK, |change| change.min(RECHECK));
        match opens {
            Some(at) if !is_open => (WindowState::Closed { opens: (at / 60, at % 60) }, next),
            _ => (WindowState::Open, next),
        }
    }
}

impl Window {
    fn contains(self, minute: u32) -> bool {
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

impl FromStr for DownloadWindows {
    type Err = InvalidWindow;

    fn from_str(text: &str) -> Result<Self, InvalidWindow> {
        text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Window {
    type Err = InvalidWindow;

    fn from_str(text: &str) -> Result<Self, InvalidWindow> {
        let ends = text.split_once('-').and_then(|(from, to)| Some((minute(from)?, minute(to)?)));
        let (from, to) = ends.ok_or_else(|| InvalidWindow::Malformed(text.to_owned()))?;
        // 24:00 is an end only.
        if from == MINUTES_PER_DAY {
            return Err(InvalidWindow::Malformed(text.to_owned()));
        }
        let to = to % MINUTES_PER_DAY;
        if from == to {
            return Err(InvalidWindow::Empty(text.to_owned()));
        }
        Ok(Self { from, to })
    }
}

/// The minute of the day of a text such as `01:00`.
fn minute(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|_| is_number)
    };
    let (hours, minutes): (u32, u32) = (number(hours)?, number(minutes)?);
    let minute = hours * 60 + minutes;
    (minutes < 60 && minute <= MINUTES_PER_DAY).then_some(minute)
}

impl Display for DownloadWindows {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (position, Window { from, to }) in self.0.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            let ((hour, minute), (end_hour, end_minute)) =
                ((from / 60, from % 60), (to / 60, to % 60));
            write!(f, "{comma}{hour:02}:{minute:02}-{end_hour:02}:{end_minute:02}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use jiff::civil::time;
    use proptest::prelude::*;

    use super::*;

    fn windows(text: &str) -> DownloadWindows {
        text.parse().unwrap()
    }

    #[test]
    fn downloads_run_in_a_window_and_otherwise_wait_for_the_next_one() {
        let open = WindowState::Open;
        let closed = |hour, minute| WindowState::Closed { opens: (hour, minute) };
        for (text, hour, minute, expected) in [
            ("01:00-05:00", 0, 59, closed(1, 0)),
            ("01:00-05:00", 1, 0, open),
            ("01:00-05:00", 4, 59, open),
            ("01:00-05:00", 5, 0, closed(1, 0)),
            ("22:30-05:00", 22, 29, closed(22, 30)),
            ("22:30-05:00", 22, 30, open),
            ("22:30-05:00", 0, 0, open),
            ("22:30-05:00", 5, 0, closed(22, 30)),
            ("22:00-24:00", 23, 59, open),
            ("22:00-24:00", 0, 0, closed(22, 0)),
            ("01:00-05:00, 12:00-13:00", 6, 0, closed(12, 0)),
            ("01:00-05:00,12:00-13:00", 12, 30, open),
            ("01:00-05:00,12:00-13:00", 13, 0, closed(1, 0)),
            ("01:00-03:00,03:00-05:00", 3, 0, open),
        ] {
            let (state, _) = windows(text).at(time(hour, minute, 0, 0), true);
            assert_eq!(state, expected, "{text} at {hour:02}:{minute:02}");
        }
    }

    #[test]
    fn window_is_ignored_while_the_clock_was_never_set() {
        let at = time(12, 0, 0, 0);
        assert_eq!(windows("01:00-05:00").at(at, false).0, WindowState::Open);
        assert_ne!(windows("01:00-05:00").at(at, true).0, WindowState::Open);
        assert_eq!(DownloadWindows::default().at(at, true).0, WindowState::Open);
    }

    #[test]
    fn clock_is_read_again_at_the_change_and_at_least_each_minute() {
        for ((hour, minute, second), seconds) in [
            ((0, 30, 0), 60),
            ((0, 59, 0), 60),
            ((0, 59, 59), 1),
            ((4, 59, 30), 30),
            ((5, 0, 0), 60),
        ] {
            let (_, next) = windows("01:00-05:00").at(time(hour, minute, second, 0), true);
            assert_eq!(next, Duration::from_secs(seconds), "{hour:02}:{minute:02}:{second:02}");
        }
    }

    #[test]
    fn window_that_is_malformed_or_empty_is_refused() {
        for text in [
            "",
            "01:00",
            "1:00-5:00",
            "01:00-25:00",
            "01:60-02:00",
            "24:00-01:00",
            "01:00-05:00,",
            "a-b",
            "01:00-24:01",
        ] {
            assert!(
                matches!(text.parse::<DownloadWindows>(), Err(InvalidWindow::Malformed(_))),
                "{text}"
            );
        }
        for text in ["01:00-01:00", "00:00-24:00"] {
            let error = text.parse::<DownloadWindows>().unwrap_err();
            assert_eq!(error, InvalidWindow::Empty(text.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn state_changes_at_no_other_time_than_the_announced_one(
            bounds in prop::collection::vec((0..MINUTES_PER_DAY, 0..MINUTES_PER_DAY), 1..4),
            second in 0..24 * 3600_i64,
        ) {
            let windows: Vec<_> = bounds.into_iter().filter(|(from, to)| from != to)
                .map(|(from, to)| Window { from, to }).collect();
            prop_assume!(!windows.is_empty());
            let windows = DownloadWindows(windows);
            let clock = |second: i64| {
                let second = second.rem_euclid(24 * 3600);
                let part = |value: i64| i8::try_from(value).unwrap();
                time(part(second / 3600), part(second / 60 % 60), part(second % 60), 0)
            };
            let (state, next) = windows.at(clock(second), true);
            prop_assert!(next > Duration::ZERO && next <= RECHECK);
            for passed in 0..i64::try_from(next.as_secs()).unwrap() {
                prop_assert_eq!(windows.at(clock(second + passed), true).0, state);
            }
            prop_assert_eq!(&windows.to_string().parse::<DownloadWindows>().unwrap(), &windows);
        }
    }
}
