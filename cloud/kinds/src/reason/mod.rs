//! The reasons of conditions and Events, with phase, condition, cause and remedy of each.
//! `docs/reasons.md` is generated from them.

use std::str::FromStr;

macro_rules! reasons {
    (: $($group:ident {
        $($(#[doc = $cause:literal])* $name:ident: $phase:ident => $condition:ident: $remedy:literal),* $(,)?
    })*) => {
        /// Why an object is in its state.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($($(#[doc = $cause])* $name),*),* }

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

            /// What the reason means, as one or more lines of Markdown.
            pub fn cause(self) -> &'static str {
                match self { $($(Self::$name => concat!($($cause),*)),*),* }
            }

            /// What a user can do; "nothing" or "wait" where nothing is wrong.
            pub fn remedy(self) -> &'static str {
                match self { $($(Self::$name => $remedy),*),* }
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
    #![allow(clippy::unwrap_used)]
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn every_reason_round_trips() {
        for reason in Reason::ALL {
            assert_eq!(reason.to_string().parse(), Ok(*reason));
        }
        assert_eq!("Nonsense".parse::<Reason>(), Err(()));
    }

    /// The heading of a group, and the page of its kind.
    fn heading(group: ReasonGroup) -> (&'static str, &'static str) {
        match group {
            ReasonGroup::Shared => ("Several kinds", "joint-inference-service.md#reasons"),
            ReasonGroup::JointInferenceService => {
                ("JointInferenceService", "joint-inference-service.md#reasons")
            }
            ReasonGroup::Execution => {
                ("Programs on nodes and in Pods", "joint-inference-service.md#reasons")
            }
            ReasonGroup::InferenceModel => ("InferenceModel", "models.md"),
            ReasonGroup::Dataset => ("Dataset", "datasets.md"),
            ReasonGroup::Model => ("Model", "models.md"),
            ReasonGroup::TrainingModel => ("TrainingModel", "training.md"),
        }
    }

    #[test]
    fn page_of_reasons_is_that_of_the_table() {
        let mut text = String::from(
            "# Reasons\n\nThe reasons of conditions and Events: what each means, and what to do. `kubectl neptune \
             status NAME` shows\nthem with the message, which names the objects. A reason that is not here was made by \
             a newer version.\n",
        );
        let mut last = None;
        for reason in Reason::ALL {
            if last.replace(reason.group()) != Some(reason.group()) {
                let (heading, page) = heading(reason.group());
                write!(
                    text,
                    "\n## {heading}\n\n[More about them]({page}).\n\n\
                     | Reason | Condition | Cause | What to do |\n|---|---|---|---|\n"
                )
                .unwrap();
            }
            let (condition, cause) =
                (reason.condition(), reason.cause().trim().trim_end_matches('.'));
            writeln!(text, "| `{reason}` | {condition} | {cause} | {} |", reason.remedy()).unwrap();
        }
        neptune_harness::generated::check("docs/reasons.md", &text);
    }

    #[test]
    fn each_reason_has_a_cause_and_a_remedy() {
        for reason in Reason::ALL {
            for text in [reason.cause(), reason.remedy()] {
                assert!(!text.trim().is_empty() && !text.contains('|'), "{reason}: {text:?}");
            }
        }
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
