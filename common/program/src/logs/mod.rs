//! The options of the log, and its set-up: lines of text or of JSON on stderr.

mod json;

use std::io::{self, IsTerminal as _};

use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use self::json::{JsonFields, JsonLines};

/// The options of the log, the same in all programs.
#[allow(clippy::doc_markdown, reason = "the comments are help texts for a terminal")]
#[derive(Debug, Clone, Default, Args)]
pub struct LogFlags {
    /// Format of log lines.
    #[arg(
        long,
        global = true,
        env = "NEPTUNE_LOG_FORMAT",
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub log_format: LogFormat,
    /// Log filter: `debug`, or `info,neptune_link=debug`. Default: $RUST_LOG, or what an operator
    /// needs.
    #[arg(long, global = true, env = "NEPTUNE_LOG_FILTER", value_name = "FILTER")]
    pub log_filter: Option<String>,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines of text for a terminal or the journal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl LogFlags {
    /// Logs to stderr from now on. `default` is the filter without an option or variable.
    ///
    /// # Errors
    /// The text of an invalid filter.
    pub(crate) fn set_up(&self, program: &'static str, default: &str) -> Result<(), String> {
        let filter = self.filter(std::env::var("RUST_LOG").ok(), default)?;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        match self.log_format {
            LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).init(),
            LogFormat::Json => {
                log.fmt_fields(JsonFields).event_format(JsonLines::new(program)).init();
            }
        }
        Ok(())
    }

    /// The filter of the option, of the variable, or the default. An empty text counts as not
    /// given.
    fn filter(&self, variable: Option<String>, default: &str) -> Result<EnvFilter, String> {
        let given = |text: &String| !text.is_empty();
        let (name, text) = match (self.log_filter.as_ref().filter(|text| given(text)), variable) {
            (Some(option), _) => ("--log-filter", option.clone()),
            (None, Some(variable)) if given(&variable) => ("RUST_LOG", variable),
            _ => return Ok(EnvFilter::new(default)),
        };
        EnvFilter::try_new(&text).map_err(|error| {
            format!(
                "{name}: invalid filter {text:?}: {error}; use for example `debug` or `info,neptune_link=debug`"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn option_wins_over_the_variable_and_the_default() {
        let filter = |option: Option<&str>, variable: Option<&str>| {
            let flags = LogFlags { log_filter: option.map(str::to_owned), ..LogFlags::default() };
            flags.filter(variable.map(str::to_owned), "info").map(|filter| filter.to_string())
        };
        assert_eq!(filter(Some("debug"), Some("warn")).unwrap(), "debug");
        assert_eq!(filter(None, Some("warn")).unwrap(), "warn");
        assert_eq!(filter(Some(""), Some("")).unwrap(), "info");
        assert_eq!(filter(None, None).unwrap(), "info");
        let error = filter(Some("info,=x=y"), None).unwrap_err();
        assert!(error.starts_with("--log-filter: invalid filter \"info,=x=y\""), "{error}");
        let error = filter(None, Some("info,=x=y")).unwrap_err();
        assert!(error.starts_with("RUST_LOG: invalid filter"), "{error}");
    }
}
