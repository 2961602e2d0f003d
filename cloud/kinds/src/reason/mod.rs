//! The reasons of conditions and Events, with phase and condition of each.

use std::str::FromStr;

macro_rules! reasons {
    (: $($group:ident {
        $($(#[$doc:meta])* $name:ident: $phase:ident => $condition:ident),* $(,)?
    })*) => {
        /// Why an object is in its state.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($($(#[$doc])* $name),*),* }

        /// The groups of the table of reasons.
        #[cfg(test)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ReasonGroup { $($group),* }

        impl Reason {
            /// Every reason, in the order of the table.
            pub const ALL: &[Self] = &[$($(Self::$name),*),*];

            /// The condition of an object with this reason: `Pending` is resolved when another
            /// object changes, `Failed` when a user changes the spec.
            pub fn condition(self) -> neptune_api::JisConditionType {
                match self { $($(Self::$name => neptune_api::JisConditionType::$condition),*),* }
            }

            /// The phase of an object with this reason.
            pub fn phase(self) -> Phase {
                match self { $($(Self::$name => Phase::$phase),*),* }
            }

            /// The kind that uses the reason.
            #[cfg(test)]
            pub fn group(self) -> ReasonGroup {
                match self { $($(Self::$name => ReasonGroup::$group),*),* }
            }
        }

        impl std::fmt::Display for Reason {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($(Self::$name => stringify!($name)),*),* })
            }
        }
    };
}

mod reported;
mod table;

pub use self::table::Reason;
#[cfg(test)]
pub use self::table::ReasonGroup;

/// The effect of a reason on the spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The spec is not in effect: nothing is published or applied for it.
    Obstacle,
    /// A normal step, without a warning.
    Progress,
    /// The spec is in effect, with a warning.
    Problem,
}

impl Reason {
    /// Whether this is a normal step that needs no warning.
    pub fn is_progress(self) -> bool {
        self.phase() == Phase::Progress
    }

    /// Whether the spec is not in effect: nothing is published or applied for it.
    pub fn is_obstacle(self) -> bool {
        self.phase() == Phase::Obstacle
    }
}

impl FromStr for Reason {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|reason| reason.to_string() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_round_trips() {
        for reason in Reason::ALL {
            assert_eq!(reason.to_string().parse(), Ok(*reason));
        }
        assert_eq!("Nonsense".parse::<Reason>(), Err(()));
    }

    #[test]
    fn obstacles_block_the_spec() {
        assert!(!Reason::WorkersRunning.is_obstacle());
        assert!(Reason::ModelNotFound.is_obstacle());
        assert!(Reason::TaskTooLarge.is_obstacle());
        assert!(!Reason::AgentNotSeen.is_obstacle());
        assert!(!Reason::CrashLoopBackOff.is_obstacle());
    }
}
