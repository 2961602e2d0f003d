//! Tests that passed only when they were repeated: the list of known ones in `hack/flaky.txt`, and
//! those of a run, which cargo-nextest writes into a `JUnit` file. Pure: `main.rs` reads the files.

use std::fmt;

use jiff::{ToSpan as _, civil::Date};
use quick_xml::{
    Reader, XmlVersion,
    escape::unescape,
    events::{BytesStart, BytesText, Event},
};

/// Maximum number of listed tests.
pub const MAX_KNOWN: usize = 5;
/// How long a test may be listed.
pub const MAX_DAYS: i32 = 30;

/// A test that is known to pass only sometimes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFlaky {
    /// The binary and the name, such as `neptune-e2e::e2e offline::some_test`.
    pub test: String,
    /// The day on which it was listed.
    pub since: Date,
    pub cause: String,
}

/// A test that passed only when it was repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlakyTest {
    /// The binary and the name, as cargo-nextest prints them.
    pub test: String,
    /// Why the first run failed: the message of a panic, or that it took too long.
    pub failure: String,
}

/// Why a list or a run is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlakyProblem {
    /// A line that is not `TEST | DATE | CAUSE`.
    Malformed(String),
    TooMany(usize),
    TooOld(KnownFlaky),
    /// A test that is not listed.
    Unknown(FlakyTest),
}

impl fmt::Display for FlakyProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(line) => write!(
                f,
                "not TEST | DATE | CAUSE, where TEST is a binary and a name, and DATE is \
                 YYYY-MM-DD: {line}"
            ),
            Self::TooMany(count) => {
                write!(f, "{count} tests are listed, and at most {MAX_KNOWN} may be: repair some")
            }
            Self::TooOld(known) => write!(
                f,
                "{} is listed since {}, longer than {MAX_DAYS} days: repair it ({})",
                known.test, known.since, known.cause
            ),
            Self::Unknown(FlakyTest { test, failure }) => write!(
                f,
                "{test} passed only when it was repeated: repair it, or list it with its cause. Its \
                 first run failed with:\n{failure}"
            ),
        }
    }
}

/// The tests of a list. Empty lines and those that begin with `#` are comments.
pub fn parse_known(list: &str) -> Result<Vec<KnownFlaky>, Vec<FlakyProblem>> {
    let lines = list.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let (mut known, mut problems) = (Vec::new(), Vec::new());
    for line in lines {
        match parse_line(line) {
            Some(test) => known.push(test),
            None => problems.push(FlakyProblem::Malformed(line.to_owned())),
        }
    }
    if known.len() > MAX_KNOWN {
        problems.push(FlakyProblem::TooMany(known.len()));
    }
    if problems.is_empty() { Ok(known) } else { Err(problems) }
}

fn parse_line(line: &str) -> Option<KnownFlaky> {
    let columns: Vec<&str> = line.splitn(3, '|').map(str::trim).collect();
    let [test, since, cause] = columns[..] else { return None };
    let (binary, name) = test.split_once(' ')?;
    let is_test = !binary.is_empty() && !name.is_empty() && !name.contains(' ');
    if !is_test || cause.is_empty() {
        return None;
    }
    Some(KnownFlaky { test: test.to_owned(), since: since.parse().ok()?, cause: cause.to_owned() })
}

/// What keeps a run from being accepted on this day, in which these tests passed only when they
/// were repeated.
pub fn problems(known: &[KnownFlaky], today: Date, flaky: &[FlakyTest]) -> Vec<FlakyProblem> {
    let oldest = today.saturating_sub(MAX_DAYS.days());
    let too_old = known.iter().filter(|known| known.since < oldest).cloned();
    let unknown =
        flaky.iter().filter(|test| !known.iter().any(|known| known.test == test.test)).cloned();
    too_old.map(FlakyProblem::TooOld).chain(unknown.map(FlakyProblem::Unknown)).collect()
}

/// The tests of a `JUnit` file of cargo-nextest that passed only when they were repeated.
pub fn flaky_tests(junit: &str) -> Result<Vec<FlakyTest>, quick_xml::Error> {
    let mut reader = Reader::from_str(junit);
    let (mut test, mut flaky) = (String::new(), Vec::<FlakyTest>::new());
    loop {
        let (element, content) = match reader.read_event()? {
            Event::Start(element) if is_flaky(&element) => {
                let content = reader.read_text(element.name())?;
                (element, content)
            }
            Event::Start(element) | Event::Empty(element) => (element, BytesText::new("")),
            Event::Eof => return Ok(flaky),
            _ => continue,
        };
        if element.name().as_ref() == "testcase" {
            test =
                format!("{} {}", attribute(&element, "classname")?, attribute(&element, "name")?);
        } else if is_flaky(&element) && flaky.last().is_none_or(|last| last.test != test) {
            // What the test printed follows its message as elements.
            let message = content.split('<').next().unwrap_or_default();
            let message = unescape(message).map_err(quick_xml::Error::Escape)?;
            let failure = match message.trim() {
                // A test that exceeded its limit of time has no message.
                "" => attribute(&element, "type")?,
                message => message.to_owned(),
            };
            flaky.push(FlakyTest { test: test.clone(), failure });
        }
    }
}

/// Whether an element is a failed run of a test that passed later: one for each repetition.
fn is_flaky(element: &BytesStart) -> bool {
    matches!(element.name().as_ref(), "flakyFailure" | "flakyError")
}

/// The value of an attribute; empty without it.
fn attribute(element: &BytesStart, name: &str) -> Result<String, quick_xml::Error> {
    let attribute = element.try_get_attribute(name)?;
    let value = attribute.map(|it| it.normalized_value(XmlVersion::Implicit1_0)).transpose()?;
    Ok(value.unwrap_or_default().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report as cargo-nextest 0.9 writes it.
    const JUNIT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4" failures="1" errors="0" time="0.02">
    <testsuite name="neptune-e2e::e2e" tests="4" disabled="0" errors="0" failures="1">
        <testcase name="power::passes" classname="neptune-e2e::e2e" time="0.002">
        </testcase>
        <testcase name="power::third_time" classname="neptune-e2e::e2e" time="0.002">
            <flakyFailure time="0.002" message="thread &apos;x&apos; panicked" type="test failure">thread &apos;x&apos; panicked:
no answer
<system-out>flakyFailure</system-out></flakyFailure>
            <flakyFailure time="0.002" message="again" type="test failure"/>
        </testcase>
        <testcase name="power::fails" classname="neptune-e2e::e2e" time="0.002">
            <failure message="thread panicked" type="test failure">text</failure>
            <rerunFailure message="thread panicked" type="test failure">text</rerunFailure>
        </testcase>
        <testcase name="last" classname="neptune-edge::agent" time="0.002">
            <flakyFailure type="test timeout"/>
        </testcase>
    </testsuite>
</testsuites>"#;

    fn day(text: &str) -> Date {
        text.parse().unwrap()
    }

    fn flaky_test(test: &str, failure: &str) -> FlakyTest {
        FlakyTest { test: test.to_owned(), failure: failure.to_owned() }
    }

    #[test]
    fn only_tests_that_passed_when_repeated_are_flaky() {
        let flaky = [
            flaky_test("neptune-e2e::e2e power::third_time", "thread 'x' panicked:\nno answer"),
            flaky_test("neptune-edge::agent last", "test timeout"),
        ];
        assert_eq!(flaky_tests(JUNIT).unwrap(), flaky);
        assert!(flaky_tests("<testsuites/>").unwrap().is_empty());
        assert!(flaky_tests("<testsuites><testcase></wrong>").is_err());
    }

    #[test]
    fn flaky_test_is_accepted_only_if_listed_within_30_days() {
        let list = "# comment\n\nneptune-e2e::e2e power::third_time | 2026-03-01 | a | slow disk\n";
        let known = parse_known(list).unwrap();
        assert_eq!(known[0].cause, "a | slow disk");
        let flaky = flaky_tests(JUNIT).unwrap();
        let reported = problems(&known, day("2026-03-31"), &flaky);
        assert_eq!(reported, [FlakyProblem::Unknown(flaky[1].clone())]);
        assert_eq!(problems(&known, day("2026-03-31"), &flaky[..1]), []);
        // Also if it passed.
        let reported = problems(&known, day("2026-04-01"), &[]);
        assert_eq!(reported, [FlakyProblem::TooOld(known[0].clone())]);
    }

    #[test]
    fn malformed_and_long_lists_are_refused() {
        for line in [
            "neptune-e2e::e2e a",
            "neptune-e2e::e2e a | 2026-03-01",
            "neptune-e2e::e2e a | 2026-03-01 | ",
            "neptune-e2e::e2e a | yesterday | a cause",
            "neptune-e2e::e2e a | 2026-02-30 | a cause",
            "a | 2026-03-01 | a cause",
            "FLAKY neptune-e2e::e2e a | 2026-03-01 | a cause",
        ] {
            let malformed = FlakyProblem::Malformed(line.to_owned());
            assert_eq!(parse_known(line).unwrap_err(), [malformed]);
        }
        let six = "neptune-e2e::e2e a | 2026-03-01 | a cause\n".repeat(MAX_KNOWN + 1);
        assert_eq!(parse_known(&six).unwrap_err(), [FlakyProblem::TooMany(6)]);
    }
}
