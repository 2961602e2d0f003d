//! Formats findings: as lines for people, as JSON for programs. Pure.

use std::fmt::Write as _;

use serde::Serialize;

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// It works, but may fail later.
    Warning,
    /// Something does not work until a person solves it.
    Error,
}

impl Level {
    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Error => "ERROR",
        }
    }
}

/// What one check found, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub level: Level,
    /// What the check saw, for people.
    pub seen: String,
    /// What to do; `None` at level `Ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, seen: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, seen: seen.into(), help: None }
    }

    pub fn warning(check: &'static str, seen: impl Into<String>, help: impl Into<String>) -> Self {
        Self { check, level: Level::Warning, seen: seen.into(), help: Some(help.into()) }
    }

    pub fn error(check: &'static str, seen: impl Into<String>, help: impl Into<String>) -> Self {
        Self { check, level: Level::Error, seen: seen.into(), help: Some(help.into()) }
    }
}

/// Whether a finding is an error.
pub fn has_errors(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.level == Level::Error)
}

fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|finding| finding.level == level).count()
}

/// One line per finding, a line with the remedy below it, and a last line with the numbers.
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { check, level, seen, help } in findings {
        let _ = writeln!(text, "{:8} {check:15} {seen}", level.label());
        if let Some(help) = help {
            let _ = writeln!(text, "{:8} {:15} -> {help}", "", "");
        }
    }
    let (errors, warnings) = (count(findings, Level::Error), count(findings, Level::Warning));
    let plural = |number: usize| if number == 1 { "" } else { "s" };
    let _ =
        writeln!(text, "{errors} error{}, {warnings} warning{}", plural(errors), plural(warnings));
    text
}

/// One JSON object with the numbers and the findings, which are stable for programs.
pub fn json(findings: &[Finding]) -> String {
    #[derive(Serialize)]
    struct JsonReport<'a> {
        version: &'static str,
        errors: usize,
        warnings: usize,
        checks: &'a [Finding],
    }
    let report = JsonReport {
        version: env!("CARGO_PKG_VERSION"),
        errors: count(findings, Level::Error),
        warnings: count(findings, Level::Warning),
        checks: findings,
    };
    let mut text = serde_json::to_string_pretty(&report).expect("it is all text and numbers");
    text.push('\n');
    text
}
