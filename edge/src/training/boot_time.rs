//! The time since the machine was booted: a clock that nobody sets. A node without a battery begins
//! in 1970, until its clock is set.

use std::{fmt, fs, str::FromStr, time::Duration};

use super::boot::boot_id;

/// A time on the machine's clock since a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootTime {
    boot: String,
    uptime: Duration,
}

impl BootTime {
    /// Reads the clock; `None` if the kernel does not tell.
    pub fn now() -> Option<Self> {
        let boot = Some(boot_id()).filter(|boot| !boot.is_empty())?;
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
        let seconds: f64 = uptime.split(' ').next()?.parse().ok()?;
        let uptime = Duration::try_from_secs_f64(seconds).ok()?;
        Some(Self { boot, uptime })
    }

    /// The age of something that runs since `start`, if that is known. `wall` is its age by the
    /// clock of the machine, which may have been set since then: an age above the machine's is none.
    pub fn age(start: Option<&Self>, now: Option<&Self>, wall: Duration) -> Duration {
        match (start, now) {
            (Some(start), Some(now)) if start.boot == now.boot => {
                now.uptime.saturating_sub(start.uptime)
            }
            (_, Some(now)) if wall > now.uptime => Duration::ZERO,
            _ => wall,
        }
    }
}

impl fmt::Display for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.boot, self.uptime.as_secs())
    }
}

impl FromStr for BootTime {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (boot, seconds) = text.split_once(' ').ok_or(())?;
        let uptime = Duration::from_secs(seconds.parse().map_err(|_| ())?);
        Ok(Self { boot: boot.to_owned(), uptime })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(boot: &str, seconds: u64) -> BootTime {
        BootTime { boot: boot.to_owned(), uptime: Duration::from_secs(seconds) }
    }

    #[test]
    fn clock_that_is_set_changes_no_age() {
        let (start, now) = (at("a", 100), at("a", 160));
        let years = Duration::from_secs(56 * 365 * 86_400);
        for (start, now, wall, expected) in [
            (Some(&start), Some(&now), years, 60),
            (Some(&start), Some(&now), Duration::ZERO, 60),
            // Without a note of the start.
            (None, Some(&now), years, 0),
            (None, Some(&now), Duration::from_secs(50), 50),
            (Some(&at("b", 100)), Some(&now), years, 0),
            (None, None, Duration::from_secs(50), 50),
        ] {
            let age = BootTime::age(start, now, wall);
            assert_eq!(age.as_secs(), expected, "{start:?} {now:?} {wall:?}");
        }
    }

    #[test]
    fn time_round_trips_and_passes() {
        let now = BootTime::now().unwrap();
        let noted: BootTime = now.to_string().parse().unwrap();
        let age = BootTime::age(Some(&noted), Some(&now), Duration::MAX);
        assert!(age < Duration::from_secs(1), "{age:?}");
        assert!("x".parse::<BootTime>().is_err());
    }
}
